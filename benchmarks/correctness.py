"""Compare loss and gradients of a training step on a device with the same step on the CPU in fp32.

`python -m benchmarks.gpu --out speeds --part correctness` runs it for ALBERT-base.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from albert_cli.bench.harness import format_or_not_finite
from albert_cli.bench.inputs import pretraining_loss, random_batch
from albert_cli.data.batches import PackedBatch
from albert_cli.formatting import finite_or_none
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import autocast, prepare_model, resolve_auto
from albert_cli.training.settings import TrainSettings

# By precision, the largest relative differences that rounding explains: of the loss, and of the vector of all
# gradients. For comparison, ALBERT-base in bf16 on a CPU has 9e-5 and 1.7e-2.
TOLERANCES: Final = {"fp32": (1e-4, 1e-3), "bf16": (1e-3, 5e-2)}
_LENGTHS: Final = (128, 16, 112, 32, 96, 48, 80, 64)


@dataclass(frozen=True)
class Correctness:
    """The losses of the device and of the CPU in fp32, and the relative differences of loss and gradients.

    Numbers that are not finite are None.
    """

    form: str  # of the step on the device: its precision, followed by ", compiled" if it was compiled
    loss_fp32_cpu: float | None
    loss: float | None
    loss_difference: float | None
    gradient_difference: float | None
    is_correct: bool


def measure_correctness(config: ModelConfig, train: TrainSettings, device: torch.device) -> Correctness:
    """Compare a forward and backward pass on the device, as in training, with a plain one on the CPU in fp32.

    The batch has sequences of many lengths, and there is no dropout. The result is correct if both differences are
    within `TOLERANCES`. If the settings request compilation, a graph must also have been compiled, because the compiler
    may silently fall back to running uncompiled.
    """
    config = config.with_dropout(0.0)
    lengths = [min(length, config.max_position_embeddings) for length in _LENGTHS]
    batch = random_batch(lengths, config.vocab_size)
    plain = TrainSettings(precision="fp32", compile="off")
    settings = resolve_auto(train, config, device, sequences=len(lengths), length=max(lengths))
    expected_loss, expected_gradients = compute_loss_and_gradients(config, batch, plain, torch.device("cpu"))
    graphs_before = _count_compiled_graphs()
    loss, gradients = compute_loss_and_gradients(config, batch, settings, device)
    was_compiled = _count_compiled_graphs() > graphs_before
    loss_difference = _relative_difference(loss, expected_loss)
    gradient_difference = _relative_difference(gradients, expected_gradients)
    loss_tolerance, gradient_tolerance = TOLERANCES[settings.precision]
    is_close = loss_difference <= loss_tolerance and gradient_difference <= gradient_tolerance
    is_compiled_as_requested = settings.compile == "off" or was_compiled
    return Correctness(
        form=settings.precision + (", compiled" if settings.compile == "on" else ""),
        loss_fp32_cpu=finite_or_none(round(float(expected_loss), 6)),
        loss=finite_or_none(round(float(loss), 6)),
        loss_difference=finite_or_none(float(f"{loss_difference:.3g}")),
        gradient_difference=finite_or_none(float(f"{gradient_difference:.3g}")),
        is_correct=is_close and is_compiled_as_requested,
    )


def _relative_difference(x: Tensor, reference: Tensor) -> float:
    """Return the norm of the difference divided by the norm of the reference."""
    return float(torch.linalg.vector_norm(x - reference) / torch.linalg.vector_norm(reference))


def _count_compiled_graphs() -> int:
    """Return how many graphs torch has compiled in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compute_loss_and_gradients(
    config: ModelConfig, batch: PackedBatch, settings: TrainSettings, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the loss, a scalar, and all gradients, [parameters], of a model with seed 0, in fp32 on the CPU."""
    torch._dynamo.reset()  # do not reuse a graph that was compiled for other settings
    torch.manual_seed(0)
    model = PretrainingModel(config).train()
    prepare_model(model, settings, device)
    with autocast(settings.precision, device):
        loss = pretraining_loss(model, device, batch)
    torch.autograd.backward(loss)
    gradients = torch.cat([p.grad.flatten().float().cpu() for p in model.parameters() if p.grad is not None])
    return loss.detach().float().cpu(), gradients


def format_result(result: Correctness) -> str:
    """Return the result as a sentence."""
    verdict = "within rounding" if result.is_correct else "NOT within rounding"
    loss = format_or_not_finite(result.loss, ".5f")
    loss_difference = format_or_not_finite(result.loss_difference, ".1e")
    gradient_difference = format_or_not_finite(result.gradient_difference, ".1e")
    return (
        f"Against the CPU in fp32, {result.form}: loss {loss}, relative difference {loss_difference}, of the gradients "
        f"{gradient_difference}: {verdict}."
    )
