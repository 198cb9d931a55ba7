"""The fine-tuning protocol for a number of labels: epochs, learning rate and dropout, before dev is looked at.

Few labels need many passes, because an update costs the same and there are few of them; many labels need few passes.
The rule is for encoders that were pretrained for minutes; `docs/domain.md` has the measurements behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_REFERENCE_LABELS: Final = 500
_REFERENCE_EPOCHS: Final = 8.0
_MIN_EPOCHS: Final = 2.0
_MAX_EPOCHS: Final = 25.0
_LEARNING_RATE: Final = 5e-4
_DROPOUT: Final = 0.1


@dataclass(frozen=True)
class LabelProtocol:
    """The values that replace "auto" in a fine-tuning recipe."""

    epochs: float
    lr: float
    dropout: float


def choose_protocol(num_labels: int) -> LabelProtocol:
    """Return the protocol for this many labels: epochs fall with the square root of their number."""
    epochs = _REFERENCE_EPOCHS * math.sqrt(_REFERENCE_LABELS / num_labels)
    epochs = min(_MAX_EPOCHS, max(_MIN_EPOCHS, float(f"{epochs:.2g}")))
    return LabelProtocol(epochs=epochs, lr=_LEARNING_RATE, dropout=_DROPOUT)
