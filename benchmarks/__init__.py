"""Benchmarks of albert and of its peers, which are not in the wheel.

Those with a command run as `python -m benchmarks.NAME`, and `benchmarks.gpu` runs the others.
"""
