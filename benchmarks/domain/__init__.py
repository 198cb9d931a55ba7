"""Builders of data sets for `albert quickstart --text … --table …`: text of a domain, and a small labeled table."""
