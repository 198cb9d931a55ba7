"""The values that replace "auto" in a fine-tuning recipe: learning rate, dropout, and the number of epochs.

The number of labeled training examples determines the epochs; learning rate and dropout are constants. Few examples
need many epochs, because an epoch has few updates; many examples need few epochs. The rule does not use the dev split.
It is made for encoders that were pretrained for minutes, and its constants come from the measurements in
`docs/domain.md`.
"""

from __future__ import annotations

import math
from typing import Final

LEARNING_RATE: Final = 5e-4
DROPOUT: Final = 0.1
_REFERENCE_EXAMPLES: Final = 500
_REFERENCE_EPOCHS: Final = 8.0  # for this many examples
_MIN_EPOCHS: Final = 2.0
_MAX_EPOCHS: Final = 25.0


def choose_epochs(num_examples: int) -> float:
    """Return the number of epochs; within limits, it falls with the square root of the labeled examples."""
    epochs = _REFERENCE_EPOCHS * math.sqrt(_REFERENCE_EXAMPLES / num_examples)
    rounded_epochs = float(f"{epochs:.2g}")  # two significant digits, for readable recipes
    return min(_MAX_EPOCHS, max(_MIN_EPOCHS, rounded_epochs))
