"""Shapes as data, the encoder and its heads, counting, and checkpoints in Hugging Face form."""
