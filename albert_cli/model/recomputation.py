"""Compute a function again in the backward pass instead of saving its activations, with the same random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, noop_context_fn


def recompute_in_backward(device: torch.device, function: Callable[..., Tensor], *arguments: object) -> Tensor:
    """Return the result of a function on `device`; only its arguments are saved for the backward pass."""
    # torch restores the generators of the CPU and of CUDA, but not that of Apple's GPU: `torch.mps` lacks the attribute
    # `_initialized`, by which torch recognizes a device in use. The backward pass would sample other dropout masks.
    contexts = _mps_contexts if device.type == "mps" else noop_context_fn
    result: Tensor = checkpoint(function, *arguments, use_reentrant=False, context_fn=contexts)
    return result


def _mps_contexts() -> tuple[contextlib.AbstractContextManager[object], contextlib.AbstractContextManager[object]]:
    """Return the contexts of the forward pass, which begins now, and of its recomputation."""
    return contextlib.nullcontext(), _mps_generator(torch.mps.get_rng_state())


@contextlib.contextmanager
def _mps_generator(state: Tensor) -> Iterator[None]:
    """Let the generator of Apple's GPU have this state while the block runs, and restore its state afterwards."""
    before = torch.mps.get_rng_state()
    torch.mps.set_rng_state(state)
    try:
        yield
    finally:
        torch.mps.set_rng_state(before)
