"""Labeled tasks: how each is read, encoded and scored; a row of `registry.TASKS`, or a custom table."""
