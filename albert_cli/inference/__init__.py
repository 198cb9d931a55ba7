"""Use a trained model: predict labels, encode texts, fill masks."""
