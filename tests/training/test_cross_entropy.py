"""Tests of `training.cross_entropy`: the cross-entropy in one pass equals torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from albert_cli.training import cross_entropy
from albert_cli.training.cross_entropy import cross_entropy_sum
from albert_cli.training.objectives import count_correct


@pytest.mark.parametrize("chunk", [1, 1000, 2**18])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3)])
def test_cross_entropy_sum_equals_torch(
    dtype: torch.dtype, tolerance: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "_CHUNK_NUMBERS", chunk)
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(37, 50, generator=generator)).to(dtype).requires_grad_()
    labels = torch.randint(50, (37,), generator=generator)
    labels[:20] = logits.detach()[:20].argmax(-1)
    expected = F.cross_entropy(logits.float(), labels, reduction="sum")
    (expected_gradient,) = torch.autograd.grad(expected / 37, logits)
    loss, correct = cross_entropy_sum(logits, labels)
    (gradient,) = torch.autograd.grad(loss / 37, logits)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert int(correct) == int(count_correct(logits.detach(), labels))
    assert not correct.requires_grad
    assert gradient.dtype == dtype
    assert float((gradient - expected_gradient).float().norm()) <= tolerance * float(expected_gradient.float().norm())


def test_cross_entropy_sum_counts_ties_like_argmax() -> None:
    logits = torch.zeros(3, 4, dtype=torch.bfloat16)
    logits[1, 2] = 1
    labels = torch.tensor([1, 2, 0])
    _, correct = cross_entropy_sum(logits, labels)
    assert int(correct) == int(count_correct(logits, labels))


def test_cross_entropy_sum_without_rows_is_zero() -> None:
    logits = torch.zeros(0, 9, requires_grad=True)
    loss, correct = cross_entropy_sum(logits, torch.zeros(0, dtype=torch.int64))
    torch.autograd.backward(loss)
    assert (loss.item(), int(correct)) == (0, 0)
    assert logits.grad is not None
    assert logits.grad.shape == (0, 9)


def test_cross_entropy_sum_nan_logit_gives_nan() -> None:
    logits = torch.zeros(5, 3)
    logits[4, 1] = torch.nan
    loss, _ = cross_entropy_sum(logits, torch.zeros(5, dtype=torch.int64))
    assert bool(loss.isnan())
