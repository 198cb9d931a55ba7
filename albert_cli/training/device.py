"""The device of a computation, and how it computes: precision, compilation, threads, and deterministic kernels.

`resolve_auto` replaces every "auto" of a recipe's `[train]`, by measuring where necessary, and `prepare_model` applies
the settings to a model. Training, evaluation, inference and benchmarks use both.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
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
from albert_cli.errors import ConfigError, Interrupted
from albert_cli.matmul import (
    MatmulBackend,
    has_onednn,
    has_prepacked_linear,
    is_large_matmul,
    linear,
    onednn_linear,
    prepack_weight,
)
from albert_cli.model.block import ACTIVATIONS
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder
from albert_cli.randomness import step_seed
from albert_cli.ranks import local_rank, world_size
from albert_cli.training.settings import NEW_RUN_NOTE, TrainSettings

MIN_ONEDNN_SPEEDUP: Final = 1.05  # a smaller gain is within the measurement's noise, and oneDNN rounds differently
_MIN_BF16_SPEEDUP: Final = 1.1  # bf16 rounds more than fp32, so it must be clearly faster
_MIN_BF16_WIDTH: Final = 96  # hidden size; in narrower models casts take the time that matmuls save
# FLOPs of a layer's forward pass for each thread. A layer has some two hundred small operations; with fewer FLOPs,
# starting and joining the threads takes longer than they save.
_FLOPS_PER_THREAD: Final = 2e8
_CUBLAS_WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"  # an environment variable


def choose_device(name: str) -> torch.device:
    """Return the device for `--device`: "auto" is CUDA, else Apple's GPU, else the CPU.

    Under `torchrun` each process has the GPU with its local rank. Only a single process can use Apple's GPU, because
    gloo has no collectives for it. This function also limits torch's threads (`machine.limit_threads`). Raises
    `ConfigError` if the device is not available.
    """
    machine.limit_threads()
    # In the order in which "auto" prefers them.
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        usable = available | {"mps": available["mps"] and world_size() == 1}
        name = next(kind for kind in usable if usable[kind])
    if name not in available:
        raise ConfigError(f"--device {name}: unknown device", "choose auto, cpu, cuda or mps")
    if not available[name]:
        raise ConfigError(
            f"--device {name}: torch finds no such device here", "run `albert doctor` to see what is available"
        )
    if name == "mps" and world_size() > 1:
        message = "--device mps: several processes cannot train together on Apple's GPU"
        raise ConfigError(message, "start one process, or use --device cpu")
    if name != "cuda":
        return torch.device(name)
    count = torch.cuda.device_count()
    if local_rank() >= count:
        raise ConfigError(
            f"LOCAL_RANK is {local_rank()}, and this process sees {count} GPU{'s' if count > 1 else ''}",
            f"start at most {count} processes here (--nproc, --nproc-per-node), and let each see all GPUs",
        )
    return torch.device("cuda", local_rank())


# ---------------------------------------------------------------- "auto" settings


def resolve_auto(
    settings: TrainSettings, config: ModelConfig, device: torch.device, *, sequences: int, length: int
) -> TrainSettings:
    """Replace each "auto" by the fastest value on this device, for micro-batches of `sequences` of `length` tokens.

    Precision, matmuls and compilation are measured or tried here. On a GPU `threads` stays "auto", because it applies
    to CPUs only. Raises `ConfigError` if compilation is required and fails.
    """
    precision = settings.precision
    if precision == "auto":
        precision = _choose_precision(config, device)
    compile_ = _choose_compile(settings, device)
    matmul = settings.matmul
    if matmul == "auto":
        matmul = "torch"
        # `train.matmul` has no effect on a GPU, in bf16 or in compiled code, so nothing is measured for them.
        if device.type == "cpu" and precision == "fp32" and compile_ == "off":
            speedup = measure_onednn_speedup(config.hidden_size, config.intermediate_size, sequences * length)
            if speedup >= MIN_ONEDNN_SPEEDUP:
                matmul = "onednn"
    elif matmul == "onednn" and not has_onednn():
        console.warn(
            'train.matmul = "onednn": this torch has no oneDNN and computes without; results differ in rounding'
        )
    threads = settings.threads
    if threads == "auto" and device.type == "cpu":
        threads = _choose_threads(config, sequences, length)
    return dataclasses.replace(settings, precision=precision, compile=compile_, matmul=matmul, threads=threads)


def _choose_compile(settings: TrainSettings, device: torch.device) -> Literal["on", "off"]:
    """Return "on" if compilation is required, or if it is "auto" and works on CUDA.

    "auto" is "off" with deterministic kernels, because the compiler orders the sums over tokens by the size of the
    first batch, which differs between ranks and after a resume. Raises `ConfigError` if compilation is required and
    fails; prints a warning if it is "auto" and fails on CUDA.
    """
    setting = settings.compile
    if setting == "off" or (setting == "auto" and (device.type != "cuda" or settings.deterministic)):
        return "off"
    error = _find_compile_error(device)
    if error is None:
        return "on"
    if setting == "on":
        raise ConfigError(
            f'train.compile is "on", but {error}', f'repair that, or set train.compile = "off"; {NEW_RUN_NOTE}'
        )
    console.warn(f"training is not compiled, which is slower: {error}")
    return "off"


def _choose_precision(config: ModelConfig, device: torch.device) -> Literal["fp32", "bf16"]:
    """Return "bf16" on a GPU that has it, and on a CPU where it is faster for a model of this width; else "fp32"."""
    if device.type == "cpu":
        is_faster = config.hidden_size >= _MIN_BF16_WIDTH and measure_bf16_speedup() >= _MIN_BF16_SPEEDUP
    else:
        # GPUs before Ampere emulate bf16, which is slower than fp32.
        is_faster = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if is_faster else "fp32"


def _choose_threads(config: ModelConfig, sequences: int, length: int) -> int:
    """Return the number of threads that a layer's forward pass keeps busy: one for each `_FLOPS_PER_THREAD` FLOPs."""
    # The FLOPs of one layer are about those of a model with one layer and a tiny vocabulary. Sharing does not change
    # the FLOPs, but a model that shares weights in groups may require more than one layer.
    layer = dataclasses.replace(without_sharing(config), vocab_size=64, num_hidden_layers=1)
    flops = sequences * length * training_flops(layer, length) / 3  # the forward pass is a third of a training step
    return min(torch.get_num_threads(), max(1, round(flops / _FLOPS_PER_THREAD)))


def note_changed_threads(settings: TrainSettings, config: ModelConfig, *, sequences: int, length: int) -> None:
    """Print a note if "auto" would now choose another number of threads than at the run's first start (`settings`).

    The cores of a process change with the number of processes and with the machine.
    """
    threads = _choose_threads(config, sequences, length)
    if settings.threads not in ("auto", threads):
        console.info(
            f"computes with train.threads={settings.threads}, as at the run's first start; now -s train.threads="
            f"{threads} fits this process's cores, and changes only rounding"
        )


@functools.cache
def measure_bf16_speedup() -> float:
    """Measure how much faster this CPU multiplies matrices in bf16 than in fp32.

    For fp32 the fastest library counts. The measurement takes 0.1 to 0.3 s. Its result is the same on a busy machine:
    one thread computes, its CPU time is measured, and the fastest of alternating rounds counts.
    """
    cpu = torch.device("cpu")
    with use_threads(1), torch.random.fork_rng(devices=[]):
        bf16, _ = machine.make_matmul("bf16", cpu)  # a function, and its FLOPs
        fp32 = [machine.make_matmul("fp32", cpu, backend)[0] for backend in machine.matmul_backends("fp32", cpu)]
        bf16_seconds, *fp32_seconds = _measure_thread_seconds([bf16, *fp32], rounds=4)
    return min(fp32_seconds) / bf16_seconds


@functools.cache
def measure_onednn_speedup(hidden: int, intermediate: int, tokens: int) -> float:
    """Measure how much faster oneDNN is than torch for two linear layers of these widths, forward and backward.

    The measurement takes up to 1.5 s and is made as in `measure_bf16_speedup`. At most 1,024 tokens and widths of 768
    and 3,072 are measured, because larger matmuls have the same FLOP rates. Without oneDNN, or if the matmuls are too
    small for it, the speedup is 1.
    """
    tokens = min(tokens, 1024)
    hidden = min(hidden, 768)
    intermediate = min(intermediate, 3072)
    if not has_onednn() or not is_large_matmul(tokens, hidden, intermediate):
        return 1.0
    shapes = ((hidden, hidden), (hidden, intermediate))
    run_torch = functools.partial(_run_linears, tokens, shapes, "torch")
    run_onednn = functools.partial(_run_linears, tokens, shapes, "onednn")
    with use_threads(1):
        torch_seconds, onednn_seconds = _measure_thread_seconds([run_torch, run_onednn], rounds=2)
    return torch_seconds / onednn_seconds


def _run_linears(tokens: int, shapes: Sequence[tuple[int, int]], backend: MatmulBackend) -> None:
    """Compute linear layers of these (input, output) widths, forward and backward."""
    for inputs, outputs in shapes:
        x = torch.ones(tokens, inputs, requires_grad=True)
        weight = torch.ones(outputs, inputs, requires_grad=True)
        output = linear(x, weight, None, backend)
        torch.autograd.backward(output, output.detach())


@functools.cache
def measure_prepacking_speedup(hidden: int, intermediate: int, activation: str, precision: str) -> float:
    """Measure how much faster a feed-forward network of these widths is with prepacked weights, without gradients.

    The measurement takes up to 0.5 s and is made as in `measure_bf16_speedup`, on 512 tokens and with widths of at most
    768 and 3,072. It leaves out the packing, which in a batch of many tokens takes a small part of the time. Without
    oneDNN the speedup is 1.
    """
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if not has_prepacked_linear(dtype):
        return 1.0
    hidden = min(hidden, 768)
    intermediate = min(intermediate, 3072)
    x = torch.ones(512, hidden, dtype=dtype)
    up = torch.ones(intermediate, hidden, dtype=dtype)
    down = torch.ones(hidden, intermediate, dtype=dtype)
    prepacked_up = prepack_weight(up, len(x))
    prepacked_down = prepack_weight(down, len(x))

    def run_plain() -> None:
        F.linear(ACTIVATIONS[activation](F.linear(x, up)), down)

    def run_prepacked() -> None:
        onednn_linear(onednn_linear(x, prepacked_up, None, activation), prepacked_down, None)

    with use_threads(1), torch.inference_mode():
        plain_seconds, prepacked_seconds = _measure_thread_seconds([run_plain, run_prepacked], rounds=3)
    return plain_seconds / prepacked_seconds


def _measure_thread_seconds(calls: Sequence[Callable[[], object]], rounds: int) -> list[float]:
    """Return each call's shortest CPU time in this thread, in seconds, over a warmup and alternating rounds."""
    seconds = [float("inf")] * len(calls)
    for _ in range(rounds + 1):
        for number, call in enumerate(calls):
            begin = time.thread_time()
            call()
            seconds[number] = min(seconds[number], time.thread_time() - begin)
    return seconds


@contextlib.contextmanager
def use_threads(count: int | Literal["auto"]) -> Iterator[None]:
    """Compute with `count` of torch's threads on the CPU while the block runs; "auto" changes nothing."""
    before = torch.get_num_threads()
    if count != "auto":
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@functools.cache
def _find_compile_error(device: torch.device) -> str | None:
    """Try `torch.compile`, which needs Triton, a compiler and headers; return why it fails, or None."""
    x = torch.ones(64, device=device, requires_grad=True)
    try:
        total: Tensor = torch.compile(lambda x: F.gelu(x).sum())(x)
        torch.autograd.backward(total)
    except Interrupted:
        raise
    except Exception as error:  # a compiler may raise anything
        return summarize_compile_error(error)
    return None


def summarize_compile_error(error: BaseException) -> str:
    """Return the line of a compilation error that names its cause."""
    lines = [line.strip() for line in str(error).splitlines()]
    # The compiler's own message is more precise than the name of the exception that quotes it.
    compiler_lines = [line for line in lines if "error:" in line]
    exception_lines = [line for line in lines if "Error" in line]
    candidates = [*compiler_lines, *exception_lines, *filter(None, lines), type(error).__name__]
    return f"compiling fails: {candidates[0]}"


# ---------------------------------------------------------------- the model on the device


def prepare_model(model: nn.Module, settings: TrainSettings, device: torch.device) -> None:
    """Configure a model's encoder by the result of `resolve_auto`, and move the model to the device."""
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    encoder.checkpointing = settings.checkpoint_activations
    encoder.matmul = "onednn" if settings.matmul == "onednn" else "torch"  # "auto", if not resolved, is "torch"
    _select_flash_attention(encoder.config.attention_probs_dropout_prob, device)
    if settings.compile == "on":
        encoder.compile_block()
        duration = "up to four minutes" if encoder.config.is_sparse else "a minute"
        console.info(f"compiling the block; the first steps may take {duration} longer")
    if device.type == "cpu":
        machine.retain_freed_memory()
    model.to(device)


def _select_flash_attention(dropout: float, device: torch.device) -> None:
    """Use flash attention 3 if its package is installed and supports the model: on Hopper, without dropout."""
    if device.type != "cuda" or importlib.util.find_spec("flash_attn_interface") is None:
        return
    if current_flash_attention_impl() is not None:  # an earlier model of this process selected version 3
        restore_flash_attention_impl()
    if dropout or torch.cuda.get_device_capability(device) != (9, 0):
        return
    try:
        activate_flash_attention_impl("FA3")
    except (ImportError, OSError, RuntimeError) as error:  # built for another torch
        reason = str(error).partition("\n")[0]
        console.warn(f"attention: flash attention 2, because version 3 is installed but does not load: {reason}")
    else:
        console.info("attention: flash attention 3")


@contextlib.contextmanager
def deterministic_kernels(enabled: bool) -> Iterator[None]:
    """While the block runs, use only kernels whose bits are reproducible, if `enabled`.

    Other GPU kernels add numbers in no fixed order: attention's backward pass, gradients of embeddings, split matmuls.
    On a CPU all kernels are reproducible. Raises `ConfigError` if torch lacks a reproducible kernel for an operation.
    """
    if not enabled:
        yield
        return
    torch_settings: Any = torch.utils.deterministic  # its attribute has no type for mypy
    was_enabled = torch.are_deterministic_algorithms_enabled()
    was_warning_only = torch.is_deterministic_algorithms_warn_only_enabled()
    was_filling_memory = torch_settings.fill_uninitialized_memory
    workspace = os.environ.get(_CUBLAS_WORKSPACE)
    # torch requires this variable for reproducible matmuls, and cuBLAS reads it at the first matmul.
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch_settings.fill_uninitialized_memory = False  # nothing reads such memory, and filling takes time
    try:
        # Without inductor's setting, Triton selects kernels by their speed, which differs from process to process.
        from torch._inductor import config as inductor  # imports as slowly as torch itself

        with inductor.patch(deterministic=True):
            yield
    except RuntimeError as error:
        if "deterministic implementation" not in str(error):
            raise
        raise ConfigError(
            f"train.deterministic: {error}", f"use -s train.deterministic=false; {NEW_RUN_NOTE}"
        ) from error
    finally:
        torch.use_deterministic_algorithms(was_enabled, warn_only=was_warning_only)
        torch_settings.fill_uninitialized_memory = was_filling_memory
        if workspace is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which matmuls use bf16 if the precision is "bf16"; weights stay in fp32."""
    if precision == "bf16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode, without gradients, while the block runs."""
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train()


def seed_micro_batch(seed: int, step: int, number: int) -> None:
    """Seed torch's generators, which dropout uses, for micro-batch `number` of one step."""
    seed = step_seed(seed, step, number)
    torch.default_generator.manual_seed(seed)
    # `torch.manual_seed` would format a traceback for every device that is not in use, which takes a millisecond.
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    elif torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
