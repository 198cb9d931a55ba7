"""Repeated runs of tasks and suites, searches and submissions, and tables of their results."""
