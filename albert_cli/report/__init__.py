"""Pages of what result directories hold; nothing here computes a score."""
