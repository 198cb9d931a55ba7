"""Vocabularies for tests."""

from __future__ import annotations

from pathlib import Path

from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.vocabulary import Vocabulary


def load_sentencepiece(directory: Path | str) -> SentencePieceVocabulary:
    """Load a vocabulary that SentencePiece serves."""
    vocabulary = Vocabulary.load(directory)
    assert isinstance(vocabulary, SentencePieceVocabulary)
    return vocabulary
