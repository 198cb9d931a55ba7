"""`albert quickstart`: run the whole pipeline, from text to a report, on bundled data or on the user's."""
