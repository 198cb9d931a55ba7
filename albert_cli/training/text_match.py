"""Compare the text of a task with the text that a model was pretrained on, by the tokens of both.

A checkpoint of `albert pretrain` has the token counts of its pretraining text in `token_counts.safetensors`. For other
checkpoints, only the fraction of unknown tokens is checked.

Shapes: V vocabulary size, n tokens of the task's texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from albert_cli import console, store
from albert_cli.errors import CheckpointError
from albert_cli.model import weight_files
from albert_cli.text.vocabulary import Vocabulary

_COUNTS_FILE: Final = "token_counts.safetensors"
_COUNTS_KEY: Final = "counts"
_MIN_TOKENS: Final = 500  # with fewer tokens the rates are mostly noise
# The limits of `TextMatch`, beyond which a warning advises to pretrain on text of the task's kind. docs/domain.md has
# measurements on both sides of the limits.
_MAX_UNKNOWN: Final = 0.02
_MIN_RELATIVE_LENGTH: Final = 0.8
_MAX_RELATIVE_COST: Final = 1.3

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class TextMatch:
    """The fraction of unknown tokens in a task's text, and two rates relative to the pretraining text.

    relative_length: the mean number of characters per token in the task's text, divided by this mean in the pretraining
    text. relative_cost: the mean nats per character in the task's text, under the unigram frequencies of the
    pretraining text, divided by this mean in the pretraining text. Both are None without token counts.
    """

    unknown: float
    relative_length: float | None = None
    relative_cost: float | None = None

    def describe_mismatch(self) -> str | None:
        """Return a phrase for each value that is beyond its limit, joined by commas; None if there is no such value."""
        reasons = []
        if self.unknown > _MAX_UNKNOWN:
            reasons.append(f"{self.unknown:.1%} of its tokens are unknown")
        if self.relative_length is not None and self.relative_length < _MIN_RELATIVE_LENGTH:
            reasons.append(f"its tokens are {1 - self.relative_length:.0%} shorter")
        if self.relative_cost is not None and self.relative_cost > _MAX_RELATIVE_COST:
            reasons.append(f"its unigram cross-entropy per character is {self.relative_cost:.1f} times as high")
        return ", ".join(reasons) or None


def write_token_counts(directory: Path, counts: Counts) -> None:
    """Write the token counts [V] of a pretraining text into a staged checkpoint."""
    save_file({_COUNTS_KEY: counts}, directory / _COUNTS_FILE)


def read_token_counts(directory: Path) -> Counts | None:
    """Read the token counts [V] of the text that a checkpoint was pretrained on; None if the checkpoint has none.

    Raises `CheckpointError` if the file is damaged.
    """
    path = directory / _COUNTS_FILE
    if not store.exists_or_is_listed(path):
        return None
    counts_V = weight_files.read_tensors(path).get(_COUNTS_KEY)
    if counts_V is None or counts_V.dtype != torch.int64 or counts_V.ndim != 1 or bool((counts_V < 0).any()):
        raise CheckpointError(f"{path}: contains no token counts", "copy the checkpoint again")
    return counts_V.numpy()


def measure_match(vocabulary: Vocabulary, ids: NDArray[np.int32], counts: Counts | None) -> TextMatch:
    """Compare the tokens [n] of a task's texts with the token counts [V] of the pretraining text."""
    unknown = float((ids == vocabulary.unk_id).mean())
    if counts is None or len(counts) != vocabulary.size:  # no counts, or counts for another vocabulary
        return TextMatch(unknown)
    lengths_V = np.array([len(piece) for piece in vocabulary.text_pieces])
    frequencies_V = (counts + 1) / (counts + 1).sum()  # add-one smoothing, because the task may have other tokens
    surprisal_V = -np.log(frequencies_V)
    relative_length = lengths_V[ids].mean() / (frequencies_V @ lengths_V)
    relative_surprisal = surprisal_V[ids].mean() / (frequencies_V @ surprisal_V)
    relative_cost = relative_surprisal / relative_length  # nats per token / characters per token = nats per character
    return TextMatch(unknown, float(relative_length), float(relative_cost))


def warn_about_mismatch(title: str, vocabulary: Vocabulary, ids: NDArray[np.int32], counts: Counts | None) -> None:
    """Print a warning if the tokens `ids` [n] of a task's texts differ much from the pretraining text's (`counts`)."""
    if len(ids) < _MIN_TOKENS:
        return
    mismatch = measure_match(vocabulary, ids, counts).describe_mismatch()
    if mismatch is not None:
        console.warn(
            f"{title}: the text is far from the pretraining text: {mismatch}; pretrain on text of this kind, with a "
            "vocabulary built from it (`albert quickstart --text … --table …`)"
        )
