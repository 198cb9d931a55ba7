"""Estimate the memory of a training step by counting, and compare it with the memory that is available."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from albert_cli import console, machine
from albert_cli.counting import costs
from albert_cli.counting.activations import activation_bytes, inference_bytes, working_bytes
from albert_cli.model.config import ModelConfig
from albert_cli.tasks.base import EVALUATION_TOKENS
from albert_cli.training.settings import NEW_RUN_NOTE, TrainSettings


@dataclass(frozen=True)
class MemoryEstimate:
    """The bytes that a training process needs, by purpose.

    `state`: weights, gradients and moments. `activations`: what the forward pass of a micro-batch saves for the
    backward pass. `teacher`: the teacher's weights and temporary tensors. `total`: the largest need at any time,
    including the temporary tensors of a step.
    """

    state: int
    activations: int
    teacher: int
    total: int


def estimate_memory(
    model: ModelConfig,
    train: TrainSettings,
    length: int,
    sequences: int,
    device: torch.device,
    teacher: ModelConfig | None = None,
) -> MemoryEstimate:
    """Count the bytes that a process needs for its state and a micro-batch: `sequences` sequences of `length` tokens.

    A teacher adds its weights and the temporary tensors of its forward pass, but no activations for a backward pass.
    """
    setup = costs.ComputeSetup.from_recipe(device.type, train.precision, train.compile)
    state = costs.state_bytes(model, setup)
    activations = sequences * activation_bytes(model, length, setup, checkpointed=train.checkpoint_activations)
    working = sequences * working_bytes(model, length, setup)
    teacher_bytes = 0
    if teacher is not None:
        uncompiled = replace(setup, compiled=False)  # the softmax over the teacher's logits is never compiled
        teacher_bytes = costs.state_bytes(teacher, setup).weights
        teacher_bytes += sequences * working_bytes(teacher, length, uncompiled)
    return MemoryEstimate(
        state=state.weights + state.gradients + state.moments,
        activations=activations,
        teacher=teacher_bytes,
        # The activations are freed before the optimizer allocates its temporary tensors (`state.update`).
        total=state.total + teacher_bytes + max(activations + working, state.update),
    )


def available_memory(device: torch.device) -> int | None:
    """Return the bytes that a process may still allocate on the device, or None if the system does not report it."""
    if device.type == "cuda":
        # torch keeps the memory of freed tensors, such as those of a measurement, and uses it again.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    return machine.memory_info().get("available")


def warn_inference_memory(model: ModelConfig, device: torch.device) -> None:
    """Warn, before a model is created, if its weights and one batch of inference may exceed the available memory."""
    estimated = inference_bytes(model, EVALUATION_TOKENS)
    available = available_memory(device)
    if available is not None and available < estimated:
        console.warn(
            f"inference may take {costs.format_bytes(estimated)} of memory, but only "
            f"{costs.format_bytes(available)} are free"
        )


def warn_training_memory(
    estimate: MemoryEstimate, sequences: int, device: torch.device, key: str = "train.micro_batch_size"
) -> None:
    """Warn, before anything is computed, if the estimate for micro-batches of `sequences` exceeds the free memory.

    `key` is the recipe's key or the option that sets the size of the micro-batches.
    """
    available = available_memory(device)
    if available is not None and available < estimate.total:
        _warn_once(estimate.total, sequences, key)


@functools.cache  # one warning for all seeds of an evaluation
def _warn_once(estimated: int, sequences: int, key: str) -> None:
    console.warn(
        f"a micro-batch of {sequences} sequences needs an estimated {costs.format_bytes(estimated)} of memory, more "
        f"than is free: set train.checkpoint_activations=true, which changes no result, or lower {key}, which samples "
        f"other dropout masks; {NEW_RUN_NOTE}"
    )
