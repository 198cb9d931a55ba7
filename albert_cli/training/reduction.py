"""Summing gradients over the ranks, once a step, a bucket at a time as the last backward pass finishes them.

A micro-batch before the last sends nothing: the sum so far would travel beside the next one's computation, but the last
one's gradient has the same size and would still have to follow, so that the wait stays and the bytes double. What does
hide the wait is that parts of the last gradient are done before the backward pass is: most of it where layers have
weights of their own, and where they share them all but the shared block and the word table, which its last operations
complete.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn

from albert_cli.ranks import RankGroup

BUCKET_BYTES: Final = 25_000_000  # bytes of fp32: large enough for a network's full rate, small enough to begin early


class GradientBuckets:
    """The gradients of a model in the order in which a backward pass finishes them, cut into buckets.

    They are sent in this order by every rank, also by one that computed nothing and adds zeros.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.dtype, self.ready, self.sent = dtype, set[nn.Parameter](), list[tuple[Tensor, Any]]()
        self.buckets: list[list[nn.Parameter]] = []
        room = 0
        for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
            if room < 4 * parameter.numel():
                self.buckets.append([])
                room = BUCKET_BYTES
            self.buckets[-1].append(parameter)
            room -= 4 * parameter.numel()

    def is_ready(self, parameter: Tensor) -> None:
        """Note that a gradient is complete, and send what is complete up to there."""
        assert isinstance(parameter, nn.Parameter)
        self.ready.add(parameter)
        while len(self.sent) < len(self.buckets) and self.ready.issuperset(self.buckets[len(self.sent)]):
            self.send()

    def send(self) -> None:
        """Begin to sum the next bucket."""
        import torch.distributed as dist

        bucket = self.buckets[len(self.sent)]
        flat = torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in bucket])
        flat = flat.to(self.dtype)
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self) -> None:
        """Send the rest, and wait: every gradient is then the sum, in its parameter's own precision."""
        while len(self.sent) < len(self.buckets):
            self.send()
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            for parameter, part in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.dtype)


@contextlib.contextmanager
def reduce_during_backward(model: nn.Module, group: RankGroup, dtype: torch.dtype) -> Iterator[None]:
    """Around the last backward pass of a step: at the end the gradients are summed over the ranks, sent in `dtype`."""
    if group.world_size == 1:
        yield
        return
    buckets = GradientBuckets(model, dtype)
    parameters: list[Any] = [p for bucket in buckets.buckets for p in bucket]
    hooks = [p.register_post_accumulate_grad_hook(buckets.is_ready) for p in parameters]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    buckets.finish()


def reduce_gradients(model: nn.Module, group: RankGroup, dtype: torch.dtype = torch.float32) -> None:
    """Sum over the ranks the gradients that a model has; none counts as zeros."""
    with reduce_during_backward(model, group, dtype):
        pass
