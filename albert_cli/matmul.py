"""Compute linear layers on a CPU with oneDNN, where it is faster than torch's default matmul.

By default torch computes fp32 matmuls with MKL, which uses only AVX2 on AMD processors. oneDNN uses AVX-512, which is
twice as fast on Zen 5 and 7 % faster on Zen 4. On Intel processors MKL and oneDNN are equally fast. Their results
differ only by rounding.

Inference in fp32 and in bf16 is faster if a forward pass copies each weight into oneDNN's layout once
(`prepack_weight`). Otherwise oneDNN does this in every layer, even if the layers share their weights. A matmul with a
prepacked weight can also apply the activation.

The suffixes of tensors' names are their shapes: M rows, K inputs and N outputs of the layer.
"""

from __future__ import annotations

import functools
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

MatmulBackend = Literal["torch", "onednn"]

_MIN_FLOPS: Final = 8e6  # in a smaller matmul, the overhead of the oneDNN operator exceeds the time that it saves
# By activation of a model: the operation that oneDNN applies to the result of a matmul, and the variant of its formula.
_FUSED_OPERATIONS: Final = {
    "none": ("none", ""),
    "gelu_new": ("gelu", "tanh"),
    "gelu": ("gelu", "none"),
    "relu": ("relu", ""),
}
_TOLERANCE: Final = {torch.float32: 1e-5, torch.bfloat16: 2e-2}  # the effect of rounding on values around 1
_ALIASING_BYTES: Final = 4096  # rows at multiples of this distance share the sets of the L1 cache and evict each other


def linear(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, backend: MatmulBackend = "torch") -> Tensor:
    """Return x @ weight.T + bias, [M, N], like `F.linear`.

    The backend "onednn" is used for large fp32 matmuls on a CPU. `F.linear` computes everything else, such as an `x_MK`
    with more than two dimensions. If the weight is prepacked (`prepack_weight`), oneDNN computes the layer, without
    gradients.
    """
    if weight_NK.is_mkldnn:  # prepacked
        return onednn_linear(x_MK, weight_NK, bias_N)
    if backend == "torch" or not _uses_onednn(x_MK, weight_NK):
        return F.linear(x_MK, weight_NK, bias_N)
    output_MN: Tensor = _OnednnLinear.apply(x_MK, weight_NK, bias_N)  # type: ignore[no-untyped-call]
    return output_MN


def _uses_onednn(x_MK: Tensor, weight_NK: Tensor) -> bool:
    """Return True if the layer is a large fp32 matmul on a CPU, and oneDNN is available."""
    is_fp32 = x_MK.dtype == torch.float32 and weight_NK.dtype == torch.float32
    if not is_fp32 or x_MK.device.type != "cpu" or x_MK.dim() != 2:
        return False
    if torch.is_autocast_enabled("cpu") or torch.compiler.is_compiling():
        return False
    rows, inputs = x_MK.shape
    return is_large_matmul(rows, inputs, len(weight_NK)) and has_onednn()


def is_large_matmul(rows: int, inputs: int, outputs: int) -> bool:
    """Return True if a matmul of these sizes is large enough for oneDNN."""
    return 2 * rows * inputs * outputs >= _MIN_FLOPS


@functools.cache
def has_onednn() -> bool:
    """Return True if oneDNN's linear operator works here: its results equal those of `F.linear` up to rounding.

    Another version of torch may lack the operator, or may have other arguments.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x_MK = torch.arange(12.0).view(3, 4)
    weight_NK = torch.arange(8.0).view(2, 4)
    bias_N = torch.arange(2.0)
    try:
        return torch.allclose(onednn_linear(x_MK, weight_NK, bias_N), F.linear(x_MK, weight_NK, bias_N))
    except (AttributeError, RuntimeError, TypeError):
        return False


@functools.cache
def has_prepacked_linear(dtype: torch.dtype) -> bool:
    """Return True if `onednn_linear` works here with prepacked weights of this dtype, and with every activation."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    x_MK = torch.linspace(-1, 1, 12).to(dtype).view(3, 4)
    weight_NK = torch.linspace(-1, 1, 8).to(dtype).view(2, 4)
    bias_N = torch.ones(2).to(dtype)
    linear_MN = F.linear(x_MK, weight_NK, bias_N)
    expected = {
        "none": linear_MN,
        "relu": F.relu(linear_MN),
        "gelu": F.gelu(linear_MN),
        "gelu_new": F.gelu(linear_MN, approximate="tanh"),
    }
    try:
        prepacked_NK = prepack_weight(weight_NK, len(x_MK))
        outputs = {name: onednn_linear(x_MK, prepacked_NK, bias_N, name) for name in expected}
    except (AttributeError, RuntimeError, TypeError):
        return False
    return all(torch.allclose(outputs[name], expected[name], atol=_TOLERANCE[dtype]) for name in expected)


def onednn_linear(x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None, activation: str = "none") -> Tensor:
    """Return activation(x @ weight.T + bias), [M, N], computed by oneDNN without gradients.

    The weight may be prepacked (`prepack_weight`). The activation is one of `model.block.ACTIVATIONS` or "none". It is
    applied before the result is rounded to the dtype of `x_MK`.

    The function calls a private operator of torch, which torch's compiler uses for inference. Public ones are slower:
    `to_mkldnn` copies the tensors before and after each layer, and 1 x 1 convolutions use MKL. `has_onednn` and
    `has_prepacked_linear` check that the operator works.
    """
    operation, formula = _FUSED_OPERATIONS[activation]
    output_MN: Tensor = torch.ops.mkldnn._linear_pointwise(x_MK, weight_NK, bias_N, operation, [], formula)
    return output_MN


def prepack_weight(weight_NK: Tensor, rows: int) -> Tensor:
    """Return a copy of a weight [N, K] in the layout of oneDNN's kernel for about `rows` rows of input.

    `linear` and `onednn_linear` accept it. The operator is private, like the one in `onednn_linear`.
    """
    prepacked_NK: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_NK.detach(), rows)
    return prepacked_NK


class _OnednnLinear(torch.autograd.Function):
    """A linear layer whose forward and backward matmuls all use oneDNN."""

    @staticmethod
    def forward(ctx: Any, x_MK: Tensor, weight_NK: Tensor, bias_N: Tensor | None) -> Tensor:
        ctx.save_for_backward(x_MK, weight_NK)
        return onednn_linear(x_MK, weight_NK, bias_N)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_MN: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x_MK, weight_NK = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        grad_MN = grad_MN.contiguous()
        grad_x_MK = None
        grad_weight_NK = None
        grad_bias_N = grad_MN.sum(0) if needs_bias else None
        if needs_x:
            grad_x_MK = onednn_linear(grad_MN, _transpose(weight_NK), None)  # grad @ weight
        # `onednn_linear(a, b, None)` is a @ b.T. The weight's gradient is grad.T @ x. If the rows of grad do not alias,
        # it is computed as (x.T @ grad).T, for which oneDNN reads the transpose of grad without a copy.
        if needs_weight and _rows_alias(grad_MN):
            grad_weight_NK = onednn_linear(grad_MN.T.contiguous(), _transpose(x_MK), None)
        elif needs_weight:
            grad_weight_NK = onednn_linear(x_MK.T.contiguous(), grad_MN.T, None).T
        return grad_x_MK, grad_weight_NK, grad_bias_N


def _transpose(matrix: Tensor) -> Tensor:
    """Return the transpose: a view or, if the matrix's rows alias, a contiguous copy, which oneDNN reads faster."""
    return matrix.T.contiguous() if _rows_alias(matrix) else matrix.T


def _rows_alias(matrix: Tensor) -> bool:
    """Return True if the distance of two rows in memory is a multiple of `_ALIASING_BYTES`."""
    return matrix.stride(0) * matrix.element_size() % _ALIASING_BYTES == 0
