"""Where training computes and how: the device, the precision of products, compilation, what is kept for backward."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import time
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import (
    activate_flash_attention_impl,
    current_flash_attention_impl,
    restore_flash_attention_impl,
)

from albert_cli import console, machine
from albert_cli.counting.costs import training_flops, without_sharing
from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder
from albert_cli.randomness import step_seed
from albert_cli.ranks import local_rank, world_size
from albert_cli.training.settings import TrainSettings

_CUBLAS_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
_MIN_BF16_SPEEDUP: Final = 1.1  # bf16 rounds, so it must be worth it
_MIN_BF16_WIDTH: Final = 96  # in narrower models casts take the time that products gain
# Multiplications and additions of a layer's forward pass that are worth another thread: with fewer, starting and
# joining the threads of some two hundred small operations a layer takes longer than they save.
_FLOPS_PER_THREAD: Final = 2e8


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
    if name == "cuda" and local_rank() >= (count := torch.cuda.device_count()):
        raise ConfigError(
            f"LOCAL_RANK is {local_rank()}, and this process sees {count} GPU{'s' if count > 1 else ''}",
            f"start at most {count} processes here (--nproc, --nproc-per-node), and let each see all GPUs",
        )
    return torch.device(name, local_rank()) if name == "cuda" else torch.device(name)


def print_idle_gpus(device: torch.device) -> None:
    """Say how to use the GPUs that a single process leaves idle."""
    if device.type == "cuda" and world_size() == 1 and (count := torch.cuda.device_count()) > 1:
        console.info(f"1 of {count} GPUs is used; --nproc {count} uses all, for the same result")


def resolve_auto(
    settings: TrainSettings, config: ModelConfig, device: torch.device, *, sequences: int, length: int
) -> TrainSettings:
    """The settings with what "auto" stands for here, for micro-batches of this many sequences of `length` tokens.

    Precision: bf16 (products only; weights, sums and softmax stay in fp32) on a GPU that has it, and on a CPU for
    a model wide enough where a measured product is faster by a tenth. Threads, of a CPU: as many as have enough to do,
    at most those that torch has. Raises `ConfigError` where compilation is demanded and impossible.
    """
    precision, compile_, threads = settings.precision, settings.compile, settings.threads
    why_not = (
        _find_compile_error(device) if compile_ == "on" or (compile_ == "auto" and device.type == "cuda") else None
    )
    if compile_ == "on" and why_not:
        raise ConfigError(f'train.compile is "on", but {why_not}', 'repair that, or set train.compile = "off"')
    if compile_ == "auto":
        compile_ = "on" if device.type == "cuda" and why_not is None else "off"
        if why_not:
            console.warn(f"not compiled, which is slower: {why_not}")
    if precision == "auto" and device.type == "cpu":
        precision = (
            "bf16" if config.hidden_size >= _MIN_BF16_WIDTH and measure_bf16_speedup() >= _MIN_BF16_SPEEDUP else "fp32"
        )
    elif precision == "auto":
        # Cards before Ampere emulate bf16, slower than fp32.
        in_hardware = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if in_hardware else "fp32"
    if threads == "auto" and device.type == "cpu":
        alone = dataclasses.replace(
            without_sharing(config), vocab_size=64, num_hidden_layers=1
        )  # such words cost nothing
        layer = sequences * length * training_flops(alone, length) / 3
        threads = min(torch.get_num_threads(), max(1, round(layer / _FLOPS_PER_THREAD)))
    return dataclasses.replace(settings, precision=precision, compile=compile_, threads=threads)


@cache
def measure_bf16_speedup() -> float:
    """How many times faster this CPU multiplies matrices in bf16 than in fp32, measured in 0.1 to 0.3 s.

    On one thread and by its own clock, the best of several in turn, so that a busy machine measures the same.
    """
    best = {"fp32": float("inf"), "bf16": float("inf")}
    with use_threads(1), torch.random.fork_rng(devices=[]):
        products = {precision: machine.make_matmul(precision, torch.device("cpu"))[0] for precision in best}
        for precision in [*best] * 4:
            begin = time.thread_time()
            products[precision]()
            best[precision] = min(best[precision], time.thread_time() - begin)
    return best["fp32"] / best["bf16"]


@contextlib.contextmanager
def use_threads(count: int | Literal["auto"]) -> Iterator[None]:
    """Compute with this many threads while the block runs; "auto" leaves them as they are."""
    before = torch.get_num_threads()
    if count != "auto":
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _find_compile_error(device: torch.device) -> str | None:
    """Why `torch.compile` does not work on this device, found by trying: it needs Triton, a compiler, headers."""
    x = torch.ones(64, device=device, requires_grad=True)
    try:
        total: Tensor = torch.compile(lambda x: F.gelu(x).sum())(x)
        total.backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a compiler may raise
        return summarize_compile_error(error)
    return None


def summarize_compile_error(error: BaseException) -> str:
    """What went wrong in a compilation, in one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    # The compiler's own words say more than the name of the exception that quotes it.
    telling = sorted((ln for ln in lines if "Error" in ln or "error:" in ln), key=lambda ln: "error:" not in ln)
    return f"compiling fails: {next(iter([*telling, *filter(None, lines)]), type(error).__name__)}"


def prepare_model(model: nn.Module, settings: TrainSettings, device: torch.device) -> None:
    """Move a model with an encoder to the device, and have it compute by `settings` without "auto"."""
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    encoder.checkpointing = settings.checkpoint_activations
    _select_flash_attention(encoder.config.attention_probs_dropout_prob, device)
    if settings.compile == "on":
        encoder.compile()
        console.info("compiling the block; the first steps take a minute longer")
    if device.type == "cpu":
        machine.retain_freed_memory()
    model.to(device)


def _select_flash_attention(dropout: float, device: torch.device) -> None:
    """Attend by flash attention 3 where its package is installed and applies: on Hopper, without dropout."""
    if device.type != "cuda" or importlib.util.find_spec("flash_attn_interface") is None:
        return
    if current_flash_attention_impl() is not None:
        restore_flash_attention_impl()
    if not dropout and torch.cuda.get_device_capability(device) == (9, 0):
        try:
            activate_flash_attention_impl("FA3")
        except (ImportError, OSError, RuntimeError) as error:  # built for another torch
            reason = str(error).partition("\n")[0]
            console.warn(f"attention: flash attention 2, since 3 is installed and cannot be used: {reason}")
        else:
            console.info("attention: flash attention 3")


@contextlib.contextmanager
def deterministic_kernels(wanted: bool) -> Iterator[None]:
    """Take only kernels that give the same bits every time while the block runs, if that is `wanted`.

    It is a matter of sums on a GPU whose order is left to chance: attention's backward pass, the gradients of tables,
    split matrix products. A CPU computes here as without it. Raises `ConfigError` where torch lacks such a kernel.
    """
    if not wanted:
        yield
        return
    memory: Any = torch.utils.deterministic  # a module with a property
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled, workspace = memory.fill_uninitialized_memory, os.environ.get(_CUBLAS_WORKSPACE)
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")  # cuBLAS: a buffer a stream; read at the first product
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # none is read here, and filling takes time
    try:
        # Triton's kernels are otherwise chosen by what was fastest in this process.
        from torch._inductor import config as inductor  # takes as long as torch itself

        with inductor.patch(deterministic=True):
            yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        raise ConfigError(f"train.deterministic: {error}", "-s train.deterministic=false goes without") from error
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        memory.fill_uninitialized_memory = filled
        if workspace is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Products in bf16 under "bf16", with fp32 weights; everything as it is otherwise."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """While it is open, the model is in evaluation mode, and nothing keeps a gradient."""
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train()


def seed_micro_batch(seed: int, step: int, part: int) -> None:
    """Seed the generators of the computation (dropout) for one micro-batch of one step."""
    number = step_seed(seed, step, part)
    torch.default_generator.manual_seed(number)
    # `torch.manual_seed` would format a traceback for every device that is not in use, which takes a millisecond.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(number)
