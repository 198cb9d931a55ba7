"""Where training computes and how: the device, the precision of products, compilation, what is kept for backward."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch._inductor.config
from torch import nn

from albert_cli import console, machine
from albert_cli.distributed import local_rank
from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder
from albert_cli.training.settings import TrainSettings

_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
_WIDE: Final = 96  # hidden size from which a CPU's bf16 units save more than the casts cost


def choose_device(name: str) -> torch.device:
    """The device for `--device`: `auto` takes CUDA, then Apple's GPU, then the CPU."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if available[kind])
    if name not in available:
        raise ConfigError(f"--device {name}: unknown", "choose auto, cpu, cuda or mps")
    if not available[name]:
        raise ConfigError(
            f"--device {name}: this machine has none that torch can use", "`albert doctor` shows what there is"
        )
    return torch.device(name, local_rank()) if name == "cuda" else torch.device(name)


def settle(settings: TrainSettings, config: ModelConfig, device: torch.device) -> TrainSettings:
    """The settings with what "auto" stands for on this device and for this shape.

    bf16 (products only; weights, sums and softmax stay in fp32) on a GPU that has it, and on a CPU with matrix units
    for it where the model is wide enough. Raises `ConfigError` where compilation is demanded and impossible.
    """
    precision, compile_ = settings.precision, settings.compile
    if precision == "auto":
        precision = "bf16" if _has_bf16(device, config) else "fp32"
    if compile_ == "auto":
        compile_ = "on" if device.type == "cuda" and _lacks_for_compiling(device) is None else "off"
        # A machine on which the compiled form fails runs the plain one.
        torch._dynamo.config.suppress_errors = compile_ == "on"
    elif compile_ == "on" and (lack := _lacks_for_compiling(device)):
        raise ConfigError(f'train.compile is "on", but {lack}', 'install it, or set train.compile = "off"')
    return dataclasses.replace(settings, precision=precision, compile=compile_)


def _has_bf16(device: torch.device, config: ModelConfig) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    # AMX multiplies eight times faster in bf16; AVX-512's bf16 instructions gain less than the casts cost.
    return device.type == "cpu" and config.hidden_size >= _WIDE and "amx_bf16" in machine.cpu()["bf16_units"]


def _lacks_for_compiling(device: torch.device) -> str | None:
    """What `torch.compile` needs on this device and does not find."""
    if device.type == "cuda":
        return None if importlib.util.find_spec("triton") else "Triton is not installed"
    return None if machine.compiler() else "no C++ compiler was found"


def place(model: nn.Module, settings: TrainSettings, device: torch.device) -> None:
    """Move a model with an encoder to the device, and have it compute as the settled `settings` say."""
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    encoder.checkpointing = settings.checkpoint_activations
    if settings.compile == "on":
        encoder.compile()
        console.note("compiling the block; the first steps take a minute longer")
    model.to(device)


@contextlib.contextmanager
def reproducible(wanted: bool) -> Iterator[None]:
    """Take only kernels that give the same bits every time while the block runs, if that is `wanted`.

    It is a matter of sums on a GPU whose order is left to chance: attention's backward pass, the gradients of tables,
    split matrix products. A CPU computes here as without it. Raises `ConfigError` where torch lacks such a kernel.
    """
    if not wanted:
        yield
        return
    memory: Any = torch.utils.deterministic  # a module with a property
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled, workspace = memory.fill_uninitialized_memory, os.environ.get(_WORKSPACE)
    os.environ.setdefault(_WORKSPACE, ":4096:8")  # cuBLAS: a buffer a stream; read at the first product
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # none is read here, and filling takes time
    try:
        # Triton's kernels are otherwise chosen by what was fastest in this process.
        with torch._inductor.config.patch(deterministic=True):
            yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        raise ConfigError(f"train.deterministic: {error}", "-s train.deterministic=false goes without") from error
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        memory.fill_uninitialized_memory = filled
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)


def synchronize(device: torch.device) -> None:
    """Wait until everything that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def matmul(precision: str, device: torch.device) -> tuple[Callable[[], float], int]:
    """A square matrix product to time, and its FLOPs; a GPU's is 8192 wide, a CPU's 1024."""
    size = 8192 if device.type == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.rand(size, size, device=device, dtype=dtype) - 0.5 for _ in range(2))

    def product() -> float:
        a @ b
        return 0.0

    return product, 2 * size**3


def matmul_peak(precision: str, device: torch.device, *, seconds: float = 1.0) -> float:
    """FLOP/s of the best of some matrix products: what this machine can really do, measured now.

    At least two products are tried, and more until `seconds` have gone by.
    """
    product, flops = matmul(precision, device)
    best, started, tried = float("inf"), time.perf_counter(), 0
    while tried < 2 or time.perf_counter() - started < seconds:
        synchronize(device)
        begin = time.perf_counter()
        product()
        synchronize(device)
        best, tried = min(best, time.perf_counter() - begin), tried + 1
    return flops / best


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Products in bf16 under "bf16", with fp32 weights; everything as it is otherwise."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
