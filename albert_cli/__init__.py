"""`albert`: from raw text to a scored, shareable ALBERT encoder (Lan et al., 2019, arXiv 1909.11942)."""

__version__ = "0.1.0"
