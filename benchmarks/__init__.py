"""Benchmarks of albert and of its peers; each runs as `python -m benchmarks.NAME`. They are not in the wheel."""
