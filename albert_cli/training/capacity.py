"""What a step needs of memory, by arithmetic, and what the device, the container and the process's limits leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from albert_cli import console, machine
from albert_cli.counting import costs
from albert_cli.model.config import ModelConfig
from albert_cli.tasks.base import EVALUATION_TOKENS
from albert_cli.training.settings import TrainSettings


def estimate_memory(
    model: ModelConfig,
    train: TrainSettings,
    length: int,
    sequences: int,
    device: torch.device,
    teacher: ModelConfig | None = None,
) -> dict[str, int]:
    """Bytes that a process needs by `costs`: for its state, and for a micro-batch of `sequences` of full length.

    A teacher adds its weights and what it computes with; nothing of it is kept for a backward pass.
    """
    setup = costs.ComputeSetup.of(device.type, train.precision, train.compile)
    state = costs.state_bytes(model, setup)
    kept = sequences * costs.activation_bytes(model, length, setup, checkpointed=train.checkpoint_activations)
    working = sequences * costs.working_bytes(model, length, setup)
    beside = 0
    if teacher is not None:
        plain = replace(setup, compiled=False)  # its softmax
        beside = costs.state_bytes(teacher, setup).weights + sequences * costs.working_bytes(teacher, length, plain)
    return {
        "weights_gradients_moments_bytes": state.weights + state.gradients + state.moments,
        "activations_bytes": kept,
        **({"teacher_bytes": beside} if teacher else {}),
        "memory_bytes_estimated": state.total + beside + max(kept + working, state.update),
    }


def available_memory(device: torch.device) -> int | None:
    """Bytes that a process may still take on the device; None where nothing says so."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine.memory_info().get("available")


def warn_inference_memory(model: ModelConfig, device: torch.device) -> None:
    """Warn, before a model is made, where its weights and a batch of `evaluation_batches` need more than there is."""
    # Measured on a CPU at widths of 512: fp32, the widest of the block and what attention has beside it.
    batch = EVALUATION_TOKENS * 4 * (1.2 * model.intermediate_size + 7 * model.hidden_size)
    estimated, left = 4 * costs.count_parameters(model).total + batch, available_memory(device)
    if left is not None and left < estimated:
        console.warn(
            f"answering may take {costs.format_bytes(estimated)} of memory, and {costs.format_bytes(left)} are free"
        )


_warned: set[tuple[int, int]] = set()  # of what, in this process: several runs of one shape need one warning


def warn_training_memory(need: Mapping[str, int], sequences: int, device: torch.device) -> None:
    """Warn, before anything is computed, where what a micro-batch of this many sequences has `needed` is not there."""
    estimated, left = need["memory_bytes_estimated"], available_memory(device)
    if left is not None and left < estimated and (estimated, sequences) not in _warned:
        _warned.add((estimated, sequences))
        console.warn(
            f"a micro-batch of {sequences} sequences needs {costs.format_bytes(estimated)} of memory by "
            f"arithmetic, and {costs.format_bytes(left)} are free: lower train.micro_batch_size, which "
            "changes no result, or set train.checkpoint_activations=true"
        )
