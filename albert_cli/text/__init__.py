"""From bytes to tokens: reading corpora, cleaning, sentence segmentation, the SentencePiece vocabulary."""
