"""Speeds, measured on the machine at hand."""
