"""The fine-tuning protocol for a number of labels: epochs, learning rate and dropout, before dev is looked at.

Few labels need many passes, because an update costs the same and there are few of them; many labels need few passes.
The rule is for encoders that were pretrained for minutes. It was fitted on data sets of package documentation and
checked on others (`docs/domain.md`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

_REFERENCE_LABELS: Final = 500
_REFERENCE_EPOCHS: Final = 12.0
_MIN_EPOCHS: Final = 2.0
_MAX_EPOCHS: Final = 40.0
_FEW_LABELS: Final = 5_000


@dataclass(frozen=True)
class LabelProtocol:
    """The values that replace "auto" in a fine-tuning recipe."""

    epochs: float
    lr: float
    dropout: float


def choose_protocol(num_labels: int) -> LabelProtocol:
    """Return the protocol for this many labels: epochs fall with their square root."""
    epochs = _REFERENCE_EPOCHS * math.sqrt(_REFERENCE_LABELS / num_labels)
    epochs = min(_MAX_EPOCHS, max(_MIN_EPOCHS, float(f"{epochs:.2g}")))
    return LabelProtocol(epochs=epochs, lr=1e-3, dropout=0.1)
