"""From bytes to tokens: read a corpus, split it into sentences, clean them, and build or load a vocabulary."""
