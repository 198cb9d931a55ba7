"""Run a model in torch and as ONNX files on the same padded batches, and compare their outputs.

Shapes: T packed tokens, N sequences, S positions, C choices of a question.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli.model.packing import PackedTokens
from albert_cli.model.padded import INPUT_NAMES, Axes, PaddedModel

Inputs = dict[str, NDArray[np.int64]]  # by the names in INPUT_NAMES: [N, S], for multiple choice [N, C, S]
Outputs = dict[str, NDArray[Any]]  # by Hugging Face's names
OutputAxes = Mapping[str, Axes]
CPU = torch.device("cpu")


def pad_batch(tokens: PackedTokens, choices: int = 0) -> Inputs:
    """Return a packed batch as padded inputs; `choices` is the number of sequences of a multiple-choice question."""
    columns = (tokens.ids, torch.ones_like(tokens.ids), tokens.segment_ids)
    arrays = [tokens.layout.pad(column).numpy() for column in columns]
    if choices:
        arrays = [array.reshape(-1, choices, array.shape[-1]) for array in arrays]
    return dict(zip(INPUT_NAMES, arrays, strict=True))


class Runtime(ABC):
    """A program that computes a model's outputs; `seconds` adds up the time of its calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, inputs: Inputs) -> Outputs:
        """Compute the outputs of a batch, and measure the time."""
        start = time.perf_counter()
        outputs = self._compute(inputs)
        self.seconds += time.perf_counter() - start
        return outputs

    def warm_up(self, inputs: Inputs) -> None:
        """Compute a batch once without measuring: the first call allocates memory."""
        self._compute(inputs)

    @abstractmethod
    def _compute(self, inputs: Inputs) -> Outputs:
        """Compute the outputs of a batch."""


class TorchRuntime(Runtime):
    """The model in torch, fp32."""

    def __init__(self, model: PaddedModel) -> None:
        super().__init__()
        self.model = model

    @torch.inference_mode()
    def _compute(self, inputs: Inputs) -> Outputs:
        outputs = self.model(*(torch.from_numpy(inputs[name]) for name in INPUT_NAMES))
        return {name: output.numpy() for name, output in zip(self.model.outputs, outputs, strict=True)}


class OnnxRuntime(Runtime):
    """An ONNX file in onnxruntime, on the CPU."""

    def __init__(self, path: Path) -> None:
        import onnxruntime

        super().__init__()
        self._session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self._names = [output.name for output in self._session.get_outputs()]

    def _compute(self, inputs: Inputs) -> Outputs:
        return dict(zip(self._names, self._session.run(None, inputs), strict=True))


def max_difference(outputs: Outputs, expected: Outputs, axes: OutputAxes, mask: NDArray[np.int64]) -> float:
    """Return the largest difference of two outputs at the positions that are no padding; `mask` is 1 there."""
    largest = 0.0
    for name, values in expected.items():
        difference = np.abs(outputs[name] - values)
        if "sequence" in axes[name].values():
            difference = difference[mask.astype(bool)]
        largest = max(largest, float(difference.max(initial=0.0)))
    return largest


def equal_decisions(
    outputs: Outputs, expected: Outputs, axes: OutputAxes, mask: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return True for each decision (the largest of some logits) that is equal in both outputs; empty without logits.

    Decisions at padding are left out; `mask` is 1 elsewhere.
    """
    equal = [np.zeros(0, dtype=bool)]
    for name, values in expected.items():
        if name.endswith("logits"):
            same = outputs[name].argmax(-1) == values.argmax(-1)
            equal.append(same[mask.astype(bool)] if "sequence" in axes[name].values() else same.ravel())
    return np.concatenate(equal)


def largest_value(outputs: Outputs) -> float:
    """Return the largest absolute value of any output."""
    return max(float(np.abs(values).max(initial=0.0)) for values in outputs.values())


class ReplayedModel(nn.Module):
    """Outputs that a runtime computed before, batch by batch, in the form of a packed model's outputs.

    `Task.predict` turns them into a task's answers like those of its own model.
    """

    def __init__(self, batches: Sequence[Outputs], padded: PaddedModel) -> None:
        super().__init__()
        self._batches = iter(batches)
        self._is_of_tokens = "sequence" in next(iter(padded.outputs.values())).values()

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return the next batch's logits: [N, C], of every token [T, C], or its start and end logits [T, 2]."""
        outputs = {name: torch.from_numpy(values) for name, values in next(self._batches).items()}
        logits = outputs["logits"] if "logits" in outputs else torch.stack(list(outputs.values()), dim=-1)
        return tokens.layout.unpad(logits) if self._is_of_tokens else logits
