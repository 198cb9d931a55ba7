"""Data sets for `albert quickstart --text … --table …`: unlabeled text of a domain, and a small labeled table."""
