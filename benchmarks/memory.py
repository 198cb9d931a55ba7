"""Find by trying the largest batches that 12 GB of a GPU hold, for the lengths of the table in BERT's README.

`python -m benchmarks.gpu --out speeds --part batches` runs the search.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch

from albert_cli.bench.harness import make_training_step
from albert_cli.bench.inputs import pretraining_loss, random_batch
from albert_cli.counting import activations, costs
from albert_cli.counting.paper import MEMORY
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS, ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.settings import OptimizerSettings

_MODELS: Final = ("bert-base", "bert-large", "albert-base", "albert-large")
_CONTEXT_BYTES: Final = 2**29  # of the 12 GB: the CUDA context, which PyTorch's limit does not include


@dataclass(frozen=True)
class LargestBatches:
    """Sequences of the largest batch at each of `costs.LENGTHS`: measured by trying, and estimated by arithmetic."""

    measured: list[int]
    by_arithmetic: list[int]


def find_largest_batches(device: torch.device) -> dict[str, LargestBatches]:
    """Return the largest batches of pretraining steps with LAMB that 12 GB hold, by model and precision.

    PyTorch limits the process to 12 GB of the GPU's memory, minus half a gigabyte for the CUDA context. Other devices
    have no such limit, so their result is empty. Raises `ConfigError` if the GPU has less than 12 GB.
    """
    if device.type != "cuda":
        return {}
    batches = {}
    _, total_bytes = torch.cuda.mem_get_info(device)
    if total_bytes < MEMORY:
        message = f"{device}: has {costs.format_bytes(total_bytes)}, less than the table's {costs.format_bytes(MEMORY)}"
        raise ConfigError(message, "use a larger GPU")
    torch.cuda.set_per_process_memory_fraction((MEMORY - _CONTEXT_BYTES) / total_bytes, device)
    try:
        for name, precision in itertools.product(_MODELS, costs.PRECISIONS):
            setup = costs.ComputeSetup("cuda", precision, compiled=False)
            estimates = [activations.largest_batch(PRESETS[name], length, MEMORY, setup) for length in costs.LENGTHS]
            measured = [
                find_largest(partial(_try_batch, PRESETS[name], length, precision, device), estimate)
                for length, estimate in zip(costs.LENGTHS, estimates, strict=True)
            ]
            batches[f"{name}, {precision}"] = LargestBatches(measured, estimates)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    return batches


def find_largest(fits: Callable[[int], bool], estimate: int) -> int:
    """Return the largest number that fits, or one at most a sixteenth below it; 0 if 1 does not fit.

    The search doubles from the estimate until a number does not fit, and then bisects.
    """
    fitting = 0
    failing = max(1, estimate)
    while fits(failing):
        fitting = failing
        failing *= 2
    while failing - fitting > max(1, fitting // 16):
        middle = (fitting + failing) // 2
        if fits(middle):
            fitting = middle
        else:
            failing = middle
    return fitting


def _try_batch(config: ModelConfig, length: int, precision: str, device: torch.device, sequences: int) -> bool:
    """Return True if two steps on a batch of `sequences` full sequences run without exhausting the memory."""
    try:
        _run_two_steps(config, length, precision, device, sequences)
    except torch.OutOfMemoryError:
        return False
    finally:
        torch.cuda.empty_cache()
    return True


def _run_two_steps(config: ModelConfig, length: int, precision: str, device: torch.device, sequences: int) -> None:
    """Run two steps. When this function returns, its model is released, and `_try_batch` empties the cache."""
    with device:  # on the host, initializing the about three hundred models of a search would take minutes
        model = PretrainingModel(config).train()
    batch = random_batch([length] * sequences, config.vocab_size)
    optimizer = make_optimizer(model, OptimizerSettings())
    step = make_training_step(model, partial(pretraining_loss, model, device), [batch], optimizer, 1.0, precision)
    step()
    step()  # the first step creates the optimizer's moments, so only the second step needs all of the memory


def batches_table(batches: dict[str, LargestBatches]) -> tuple[list[str], list[list[str]]]:
    """Return the headers and the rows of a table of largest batches."""
    rows = []
    for name, row in batches.items():
        rows.append([name, "measured", *map(str, row.measured)])
        rows.append([name, "by arithmetic", *map(str, row.by_arithmetic)])
    return ["largest batch at 12 GB", "", *map(str, costs.LENGTHS)], rows
