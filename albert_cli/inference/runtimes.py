"""Run a model in torch and as ONNX files on the same padded batches, and compare the outputs of these runtimes.

Shapes: T packed tokens (sequences concatenated without padding), N texts or questions, S positions, L labels, C choices
of a question.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
    """Return a packed batch as padded inputs [N, S], or [N, C, S] if `choices` (C) is not 0."""
    packed_inputs = (tokens.ids, torch.ones_like(tokens.ids), tokens.segment_ids)  # in the order of INPUT_NAMES
    arrays = [tokens.layout.pad(packed).numpy() for packed in packed_inputs]
    if choices:
        arrays = [array.reshape(-1, choices, array.shape[-1]) for array in arrays]
    return dict(zip(INPUT_NAMES, arrays, strict=True))


class Runtime:
    """A program that computes a model's outputs; `seconds` is the total time of its calls.

    Calling `compute` instead of the runtime adds nothing to `seconds`.
    """

    def __init__(self, compute: Callable[[Inputs], Outputs]) -> None:
        self.compute = compute
        self.seconds = 0.0

    def __call__(self, inputs: Inputs) -> Outputs:
        """Compute the outputs of a batch, and add the time to `seconds`."""
        start = time.perf_counter()
        outputs = self.compute(inputs)
        self.seconds += time.perf_counter() - start
        return outputs


def torch_runtime(model: PaddedModel) -> Runtime:
    """Return the model in torch, fp32, as a runtime."""

    @torch.inference_mode()
    def compute(inputs: Inputs) -> Outputs:
        outputs = model(*(torch.from_numpy(inputs[name]) for name in INPUT_NAMES))
        return {name: output.numpy() for name, output in zip(model.outputs, outputs, strict=True)}

    return Runtime(compute)


def onnx_runtime(path: Path) -> Runtime:
    """Return an ONNX file in onnxruntime, on the CPU, as a runtime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return Runtime(lambda inputs: dict(zip(names, session.run(None, inputs), strict=True)))


def max_difference(outputs: Outputs, expected: Outputs, axes: OutputAxes, mask: NDArray[np.int64]) -> float:
    """Return the largest absolute difference between the values of any output, without the positions of padding.

    The result is NaN or infinite if a value is. axes: the names of each output's axes; mask: the attention mask, 0 at
    padding, in the inputs' shape.
    """
    largest_by_output = [0.0]
    for name, values in expected.items():
        with np.errstate(invalid="ignore"):  # the difference of two infinite values is NaN
            difference = np.abs(outputs[name] - values)
        if "sequence" in axes[name].values():
            difference = difference[mask.astype(bool)]
        largest_by_output.append(float(difference.max(initial=0.0)))
    return float(np.max(largest_by_output))  # unlike Python's `max`, NaN if one value is NaN


def equal_decisions(
    outputs: Outputs, expected: Outputs, axes: OutputAxes, mask: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return True for each decision that is equal in both outputs; a decision is the index of the largest logit.

    The last axis of the logits must be over classes or the vocabulary; for answer spans it is over positions. Decisions
    at padding, where `mask` is 0, are left out. The result is empty for outputs without logits.
    """
    equal = [np.zeros(0, dtype=bool)]
    for name, values in expected.items():
        if not name.endswith("logits"):
            continue
        is_equal = outputs[name].argmax(-1) == values.argmax(-1)
        if "sequence" in axes[name].values():
            is_equal = is_equal[mask.astype(bool)]
        equal.append(is_equal.ravel())
    return np.concatenate(equal)


def largest_value(outputs: Outputs) -> float:
    """Return the largest absolute value of any output."""
    return max(float(np.abs(values).max(initial=0.0)) for values in outputs.values())


class ReplayedModel(nn.Module):
    """A model that computes nothing: it returns the outputs that a runtime has computed before on the same batches.

    `Task.predict` calls it like any model of packed tokens, and so turns a runtime's outputs into the task's outputs.
    """

    def __init__(self, batches: Sequence[Outputs], padded: PaddedModel) -> None:
        super().__init__()
        self._batches = iter(batches)
        first_axes = next(iter(padded.outputs.values()))
        self._is_per_token = "sequence" in first_axes.values()

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return the next batch's logits.

        Their shape is [N, L] for texts, [N, C] for choices, [T, L] for tokens, and [T, 2] for the starts and ends of
        spans.
        """
        outputs = [torch.from_numpy(values) for values in next(self._batches).values()]
        # A span has two outputs, start_logits and end_logits; every other head has one, logits.
        logits = outputs[0] if len(outputs) == 1 else torch.stack(outputs, dim=-1)
        return tokens.layout.unpad(logits) if self._is_per_token else logits
