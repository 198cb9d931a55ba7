"""Model shapes, the encoder and its heads, and checkpoints in Hugging Face's format."""
