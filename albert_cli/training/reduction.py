"""Sum gradients over the ranks: once per step, one bucket at a time while the last backward pass still runs.

Only the backward pass of a step's last micro-batch sends anything. Sending the gradients of earlier micro-batches would
not shorten the wait, because the last gradients have the same size and would have to follow. The wait is short where
many gradients are complete before the last backward pass ends. Without shared layers, most of the communication
overlaps with this pass. With shared layers, the gradients of the shared block and of the token embeddings are complete
only at its end.

`DistributedDataParallel` averages gradients instead, which is wrong here: every loss is already divided by its number
of items in the global batch. Its averages times the number of ranks equal these sums up to rounding, and with two ranks
bit for bit. Here a rank without a micro-batch takes part too: it sends zeros.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from albert_cli.model.packing import to_device
from albert_cli.ranks import RankGroup

if TYPE_CHECKING:
    from torch.distributed import Work

BUCKET_BYTES: Final = 25_000_000  # in fp32; large enough for a network's full rate, small enough to begin early


class GradientBuckets:
    """The gradients of a model, split into buckets, about in the order in which a backward pass completes them.

    This is the reverse of the order in which the model registers its parameters. Every rank sends the buckets in this
    order, in the precision `dtype`. A rank that computed nothing sends zeros. A bucket ends with a flag for each of its
    parameters: 1 if this rank has a gradient, else 0.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._buckets: list[list[nn.Parameter]] = []
        self._complete: set[Tensor] = set()
        self._sent: list[tuple[Tensor, Work]] = []  # the flat gradients of each sent bucket, and its all-reduce
        free_bytes = 0
        for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
            fp32_bytes = 4 * parameter.numel()
            if free_bytes < fp32_bytes:
                self._buckets.append([])
                free_bytes = BUCKET_BYTES
            self._buckets[-1].append(parameter)
            free_bytes -= fp32_bytes

    def mark_complete(self, parameter: Tensor) -> None:
        """Record that a gradient is complete; send the next buckets in their order, up to the first incomplete one."""
        self._complete.add(parameter)
        while len(self._sent) < len(self._buckets) and self._complete.issuperset(self._buckets[len(self._sent)]):
            self._send_next()

    def finish(self) -> None:
        """Send the remaining buckets and wait; every `.grad` is then the sum, in the precision of its parameter.

        A parameter without a gradient on any rank still has none.
        """
        while len(self._sent) < len(self._buckets):
            self._send_next()
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            work.wait()
            *parts, flags = torch.split(flat, [*(p.numel() for p in bucket), len(bucket)])
            has_gradient = [True] * len(bucket)
            if any(p.grad is None for p in bucket):  # reading the flags waits for the device, which is rarely necessary
                has_gradient = (flags > 0).tolist()
            for parameter, part, is_used in zip(bucket, parts, has_gradient, strict=True):
                if is_used:
                    parameter.grad = part.view_as(parameter).to(parameter.dtype)

    def _send_next(self) -> None:
        """Begin the all-reduce of the first bucket that is not sent yet."""
        import torch.distributed as dist

        bucket = self._buckets[len(self._sent)]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        (flags,) = to_device([np.array([p.grad is not None for p in bucket], np.float32)], bucket[0].device)
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), flags]).to(self.dtype)
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None  # only a process outside of the group gets None
        self._sent.append((flat, work))


@contextlib.contextmanager
def reduce_during_backward(model: nn.Module, group: RankGroup, dtype: torch.dtype) -> Iterator[None]:
    """Sum the gradients over the ranks, in the precision `dtype`, while the block runs a step's last backward pass."""
    if group.world_size == 1:
        yield
        return
    buckets = GradientBuckets(model, dtype)
    hooks = [
        p.register_post_accumulate_grad_hook(buckets.mark_complete)  # type: ignore[no-untyped-call]
        for p in model.parameters()
        if p.requires_grad
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    buckets.finish()


def reduce_gradients(model: nn.Module, group: RankGroup, dtype: torch.dtype = torch.float32) -> None:
    """Sum over the ranks the gradients that a model already has; a missing gradient counts as zeros.

    A parameter without a gradient on any rank still has none.
    """
    with reduce_during_backward(model, group, dtype):
        pass
