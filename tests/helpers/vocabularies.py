"""Load vocabularies, and train a SentencePiece model as other programs do."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.text_files import write_numbered_sentences

# Options of SentencePiece's trainer for a model with ALBERT's special tokens.
ALBERT_OPTIONS: dict[str, Any] = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}


def load_sentencepiece(directory: Path | str) -> SentencePieceVocabulary:
    """Load a vocabulary; assert that SentencePiece is its backend."""
    vocabulary = Vocabulary.load(directory)
    assert isinstance(vocabulary, SentencePieceVocabulary)
    return vocabulary


def train_elsewhere(directory: Path, sentences: int = 600, **options: Any) -> Path:
    """Train a `spiece.model` in a directory as other programs do; options: those of SentencePiece's trainer."""
    import sentencepiece

    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(write_numbered_sentences(directory, sentences).read_text().lower().split("\n")),
        model_writer=model,
        minloglevel=2,
        **{"vocab_size": 150, **options},
    )
    (directory / "spiece.model").write_bytes(model.getvalue())
    return directory
