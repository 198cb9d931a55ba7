"""Cross-entropy over a vocabulary on a CPU, with its gradient computed in the same pass over the logits.

torch's `cross_entropy` reads and writes [M, V] numbers in fp32 about ten times per step, which takes a fifth of a
narrow model's training time. Here a chunk of a few rows goes through all operations while it is in the CPU's cache.

Suffixes of shapes: M masked positions, V vocabulary size, C rows of a chunk, R rows that are searched for their argmax.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_CHUNK_NUMBERS: Final = 2**18  # rows times columns: 1 MB in fp32, which fits into a second-level cache


def cross_entropy_sum(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropy (fp32, in nats) and the number of labels that are the argmax (int64).

    Both are scalars. The logits may be in bf16; the softmax is computed in fp32.
    """
    loss, correct = _CrossEntropySum.apply(logits_MV, labels_M)  # type: ignore[no-untyped-call]
    return loss, correct


class _CrossEntropySum(torch.autograd.Function):
    """`cross_entropy_sum`, whose forward pass also computes the gradient with respect to the logits."""

    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        gradient_MV = torch.empty_like(logits_MV) if ctx.needs_input_grad[0] else None
        loss = torch.zeros(())
        correct = torch.zeros((), dtype=torch.int64)
        rows = max(1, _CHUNK_NUMBERS // logits_MV.shape[1])
        for begin in range(0, len(logits_MV), rows):
            logits_CV = logits_MV[begin : begin + rows]
            labels_C1 = labels_M[begin : begin + rows, None]
            # The values are changed in place below until they are the gradient. With fp32 logits they therefore use the
            # gradient's memory.
            if gradient_MV is not None and gradient_MV.dtype == torch.float32:
                values_CV = gradient_MV[begin : begin + rows].copy_(logits_CV)
            else:
                values_CV = logits_CV.to(torch.float32, copy=True)
            max_C1 = values_CV.amax(1, keepdim=True)
            label_values_C1 = values_CV.gather(1, labels_C1)
            correct += _count_correct(logits_CV, labels_C1[:, 0], (label_values_C1 == max_C1)[:, 0])
            exponentials_CV = values_CV.sub_(max_C1).exp_()
            sums_C1 = exponentials_CV.sum(1, keepdim=True)
            loss += (sums_C1.log() + max_C1 - label_values_C1).sum()
            if gradient_MV is not None:  # the gradient of the loss is the softmax minus the one-hot label
                chunk_gradient_CV = exponentials_CV.div_(sums_C1)
                chunk_gradient_CV.scatter_add_(1, labels_C1, torch.full_like(label_values_C1, -1.0))
                if gradient_MV.dtype != torch.float32:
                    gradient_MV[begin : begin + rows] = chunk_gradient_CV
        if gradient_MV is not None:
            ctx.save_for_backward(gradient_MV)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (gradient_MV,) = ctx.saved_tensors
        # In place, to save memory. If there is a second backward pass, torch raises an error, because the saved tensor
        # has changed.
        return gradient_MV.mul_(grad_loss), None


def _count_correct(logits_CV: Tensor, labels_C: Tensor, has_max_C: Tensor) -> Tensor:
    """Count the labels that are the argmax of their logits; `has_max_C` marks rows whose label has the largest logit.

    In fp32 a row hardly ever has several largest logits, so a marked row's label counts as the argmax. In bf16 this is
    common, and the argmax is the first of them, so the marked rows are searched for it.
    """
    if logits_CV.dtype == torch.float32:
        return has_max_C.sum()
    rows_R = has_max_C.nonzero()[:, 0]
    argmax_R = logits_CV.index_select(0, rows_R).max(1).indices
    return (argmax_R == labels_C.index_select(0, rows_R)).sum()
