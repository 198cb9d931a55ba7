"""`albert quickstart`: run the whole pipeline on bundled or own data, from text to a report."""
