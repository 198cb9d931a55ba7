"""Labeled tasks: how each is read, encoded and scored; a row of `spec.TASKS`, or one's own table."""
