"""Repeated runs, their results, and the report."""
