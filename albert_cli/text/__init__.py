"""From bytes to pieces: reading corpora, cleaning, sentence segmentation, the SentencePiece vocabulary."""
