"""Choose epochs, learning rate and dropout for a number of training labels, without using the dev split.

Few labels need many epochs, because an epoch has few updates; many labels need few epochs. The rule is for encoders
that were pretrained for minutes; `docs/domain.md` has the measurements from which its constants come.
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
    """Return the protocol for `num_labels` training labels; the epochs fall with the square root of their number."""
    epochs = _REFERENCE_EPOCHS * math.sqrt(_REFERENCE_LABELS / num_labels)
    rounded_epochs = float(f"{epochs:.2g}")  # two significant digits, for readable recipes
    clamped_epochs = min(_MAX_EPOCHS, max(_MIN_EPOCHS, rounded_epochs))
    return LabelProtocol(epochs=clamped_epochs, lr=_LEARNING_RATE, dropout=_DROPOUT)
