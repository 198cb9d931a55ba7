"""Cross-entropy over a vocabulary on a CPU, with its gradient computed in the same pass over the logits.

torch's function reads and writes [M, V] numbers in fp32 about ten times per step, a fifth of a narrow model's time.
Here a few rows at a time go through all operations while they are in the CPU's cache.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

_CHUNK_NUMBERS: Final = 2**18  # 1 MB in fp32, which fits into a second-level cache


def cross_entropy_sum(logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the cross-entropy, with softmax in fp32, and the number of labels that are the argmax."""
    loss, correct = _CrossEntropySum.apply(logits_MV, labels_M)  # type: ignore[no-untyped-call]
    return loss, correct


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
        needs_gradient = ctx.needs_input_grad[0]
        gradient_MV = torch.empty_like(logits_MV) if needs_gradient else None
        loss = torch.zeros(())
        correct = torch.zeros((), dtype=torch.int64)
        rows = max(1, _CHUNK_NUMBERS // logits_MV.shape[1])
        for begin in range(0, len(logits_MV), rows):
            logits_CV = logits_MV[begin : begin + rows]
            labels_C1 = labels_M[begin : begin + rows, None]
            values_CV = logits_CV.float() if logits_CV.dtype != torch.float32 else logits_CV.clone()
            top_C1 = values_CV.amax(1, keepdim=True)
            label_values_C1 = values_CV.gather(1, labels_C1)
            correct += _count_correct(logits_CV, labels_C1[:, 0], (label_values_C1 == top_C1)[:, 0])
            exponentials_CV = values_CV.sub_(top_C1).exp_()
            sums_C1 = exponentials_CV.sum(1, keepdim=True)
            loss += (sums_C1.log() + top_C1 - label_values_C1).sum()
            if gradient_MV is not None:
                probabilities_CV = exponentials_CV.div_(sums_C1)
                probabilities_CV.scatter_add_(1, labels_C1, torch.full_like(label_values_C1, -1.0))
                gradient_MV[begin : begin + rows] = probabilities_CV
        if gradient_MV is not None:
            ctx.save_for_backward(gradient_MV)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (gradient_MV,) = ctx.saved_tensors
        return gradient_MV * grad_loss, None


def _count_correct(logits_CV: Tensor, labels_C: Tensor, has_top_value_C: Tensor) -> Tensor:
    """Count labels that are the argmax of their logits; only rows whose label has the largest value need a look.

    In fp32 a label with the largest value is the argmax. In bf16 several logits may have it, and the first one counts.
    """
    if logits_CV.dtype == torch.float32:
        return has_top_value_C.sum()
    rows_R = has_top_value_C.nonzero()[:, 0]
    return (logits_CV.index_select(0, rows_R).max(1).indices == labels_C.index_select(0, rows_R)).sum()
