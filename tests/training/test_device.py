"""Tests of `training.device`: the values of "auto", and settings that change only time and memory."""

from __future__ import annotations

import math
import os
import platform
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from albert_cli import machine, matmul
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS, ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.training import device
from albert_cli.training.device import seed_micro_batch
from albert_cli.training.settings import TrainSettings
from tests.helpers.shapes import TINY, random_batch

CPU = torch.device("cpu")
BASE = PRESETS["albert-base"]


def resolve(settings: TrainSettings, config: ModelConfig, sequences: int = 8, length: int = 32) -> TrainSettings:
    return device.resolve_auto(settings, config, CPU, sequences=sequences, length=length)


@pytest.mark.parametrize(("speedup", "expected"), [(2.0, "bf16"), (1.0, "fp32"), (0.2, "fp32")])
def test_resolve_auto_cpu_takes_bf16_if_faster(speedup: float, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The measured speedup decides, not the bf16 units that the processor reports."""
    monkeypatch.setattr(
        machine, "describe_cpu", lambda: {"bf16_units": ["avx512_bf16"] if speedup > 1 else ["amx_bf16"]}
    )
    monkeypatch.setattr(device, "measure_bf16_speedup", lambda: speedup)
    settings = TrainSettings(matmul="torch")  # "auto" would measure which library is faster
    assert resolve(settings, BASE).precision == expected
    assert resolve(settings, TINY).precision == "fp32"  # too narrow to be faster in bf16
    for precision in ("fp32", "bf16"):
        assert resolve(replace(settings, precision=precision), TINY).precision == precision


def test_measure_bf16_speedup_has_no_side_effects() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    device.measure_bf16_speedup.cache_clear()
    assert 0 < device.measure_bf16_speedup() < math.inf
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_resolve_auto_threads_grow_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    settings = TrainSettings(precision="fp32", matmul="torch")
    narrow = replace(BASE, hidden_size=64, num_attention_heads=2, intermediate_size=256)
    threads = [resolve(settings, narrow, sequences, 32).threads for sequences in (16, 64, 256, 4096)]
    assert threads == sorted(threads)
    assert (threads[0], threads[-1]) == (1, 8)
    assert resolve(settings, BASE, 16, 128).threads == 8
    assert resolve(replace(settings, threads=3), narrow, 16, 32).threads == 3  # the number in the recipe
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # the threads of one rank
    assert resolve(settings, BASE, 16, 128).threads == 1


def test_use_threads_restores_count() -> None:
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), device.use_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise ZeroDivisionError
    with device.use_threads("auto"):
        assert torch.get_num_threads() == before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has this setting")
def test_prepare_model_cpu_retains_freed_memory() -> None:
    def count_new_pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            torch.zeros(10 << 20)  # 40 MB or 10,240 pages, more than glibc retains by default
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    device.prepare_model(PretrainingModel(TINY), TrainSettings(compile="off"), CPU)
    count_new_pages()
    assert count_new_pages() < 10_240


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no huge pages")
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only the heap of glibc gets huge pages")
def test_prepare_model_cpu_requests_huge_pages() -> None:
    # A library that an earlier test of this process used may have trimmed the heap, and new memory has no such request.
    machine.retain_freed_memory.cache_clear()
    device.prepare_model(PretrainingModel(TINY), TrainSettings(compile="off"), CPU)
    heap_kilobytes = 0
    name = size = ""
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if line.startswith("Size:"):
            size = line.split()[1]
        elif line.startswith("VmFlags:"):
            if name.endswith("[heap]") and "hg" in line.split():  # the flag of madvise(MADV_HUGEPAGE)
                heap_kilobytes += int(size)
        elif "-" in line.split()[0]:  # the first line of a mapping: its addresses and its name
            name = line
    assert heap_kilobytes > 100_000


def test_resolve_auto_cpu_compiles_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainSettings(precision="fp32")
    assert resolve(settings, TINY).compile == "off"
    monkeypatch.setattr(device, "_find_compile_error", lambda device: "compiling fails: no compiler")
    assert resolve(settings, TINY).compile == "off"
    with pytest.raises(ConfigError, match="no compiler") as error:
        resolve(replace(settings, compile="on"), TINY)
    assert "new --out" in str(error.value.hint), "a run that was started with compile = on cannot resume with off"


def test_summarize_compile_error_quotes_compiler() -> None:
    message = (
        "CppCompileError: C++ compile error\n\nOutput:\nfatal error: error closing /tmp/a.s: No space left on device"
    )
    assert device.summarize_compile_error(RuntimeError(message)).endswith("No space left on device")
    assert device.summarize_compile_error(RuntimeError("KeyError: 3\n")) == "compiling fails: KeyError: 3"


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_sets_matmul_precision(precision: str, dtype: torch.dtype) -> None:
    with device.autocast(precision, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def gradients(model: PretrainingModel) -> dict[str, Tensor]:
    batch = random_batch((20, 3, 11))
    model.zero_grad()
    torch.manual_seed(1)
    logits = model(pack(batch, CPU, batch.masked_index))
    (logits.masked.logsumexp(-1).sum() + logits.sentence_order.square().sum()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_checkpoint_activations_changes_no_bit(dropout: float) -> None:
    model = PretrainingModel(replace(TINY, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)).train()
    stored = gradients(model)
    device.prepare_model(model, replace(TrainSettings(), checkpoint_activations=True), CPU)
    recomputed = gradients(model)
    assert stored.keys() == recomputed.keys()
    assert all(torch.equal(stored[name], recomputed[name]) for name in stored)


def determinism_settings() -> tuple[bool, bool, bool, str | None]:
    """Return all settings that `deterministic_kernels` changes."""
    memory: Any = torch.utils.deterministic
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch._inductor.config.deterministic,
        memory.fill_uninitialized_memory,
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )


def test_deterministic_kernels_restores_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    default = determinism_settings()
    assert default == (False, False, True, None)
    with device.deterministic_kernels(False):
        assert determinism_settings() == default
    with pytest.raises(ZeroDivisionError), device.deterministic_kernels(True):
        assert determinism_settings() == (True, True, False, ":4096:8")
        raise ZeroDivisionError
    assert determinism_settings() == default
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # set by the user
    with device.deterministic_kernels(True):
        assert determinism_settings()[-1] == ":16:8"
    assert determinism_settings()[-1] == ":16:8"


def test_deterministic_kernels_missing_kernel_raises() -> None:
    with pytest.raises(ConfigError, match=r"train\.deterministic: put_") as error, device.deterministic_kernels(True):
        torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))
    assert "new --out" in str(error.value.hint)
    with pytest.raises(RuntimeError, match="size"), device.deterministic_kernels(True):
        torch.zeros(3) + torch.zeros(2)


def test_seed_micro_batch_determines_dropout() -> None:
    samples = {}
    for key in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (2**61, 10**9, 10**4)]:
        seed_micro_batch(*key)
        samples[key] = tuple(torch.rand(4).tolist())
        seed_micro_batch(*key)
        assert samples[key] == tuple(torch.rand(4).tolist())
    assert len(set(samples.values())) == len(samples)


# ---------------------------------------------------------------- the matmul backend


def matmul_gradients(backend: Literal["torch", "onednn"]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits and gradients of a model whose linear layers use `backend`."""
    torch.manual_seed(3)
    model = PretrainingModel(replace(TINY, num_hidden_groups=1))
    device.prepare_model(model, TrainSettings(precision="fp32", compile="off", matmul=backend, threads=1), CPU)
    logits = model(pack(random_batch((20, 3, 11)), CPU, np.array([1, 5, 22])))
    loss = logits.masked.square().mean() + logits.sentence_order.square().mean()
    torch.autograd.backward(loss)
    return logits.masked.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.skipif(not matmul.has_onednn(), reason="this torch has no oneDNN")
def test_prepare_model_onednn_computes_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "_MIN_FLOPS", 0.0)
    calls = []
    original = matmul.onednn_linear

    def counted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(x.shape)
        return original(x, weight, bias)

    monkeypatch.setattr(matmul, "onednn_linear", counted)
    expected_logits, expected_gradients = matmul_gradients("torch")
    assert not calls
    logits, actual_gradients = matmul_gradients("onednn")
    assert len(calls) > 3 * (1 + 4 * TINY.num_hidden_layers), "oneDNN computes the backward pass too"
    assert torch.allclose(logits, expected_logits, atol=1e-5)
    assert actual_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        # The gradient of the key's bias is zero except for rounding errors, because softmax ignores an added constant.
        assert float((actual_gradients[name] - gradient).norm()) <= 1e-5 * float(gradient.norm()) + 1e-7, name


@pytest.mark.parametrize(("speedup", "backend"), [(2.0, "onednn"), (1.0, "torch"), (0.8, "torch")])
def test_resolve_auto_takes_faster_matmul_in_fp32(
    speedup: float, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "measure_onednn_speedup", lambda *_: speedup)
    assert resolve(TrainSettings(precision="fp32"), TINY).matmul == backend
    assert resolve(TrainSettings(precision="bf16"), TINY).matmul == "torch"
    assert resolve(TrainSettings(precision="fp32", matmul="torch"), TINY).matmul == "torch"


def test_resolve_auto_missing_onednn_warns_and_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device, "has_onednn", lambda: False)
    settings = resolve(TrainSettings(precision="fp32", matmul="onednn"), TINY)
    assert settings.matmul == "onednn"
    assert "this torch has no oneDNN" in capsys.readouterr().err
    assert device.measure_onednn_speedup.__wrapped__(768, 3072, 1024) == 1.0
    monkeypatch.setattr(device, "has_prepacked_linear", lambda dtype: False)
    assert device.measure_prepacking_speedup.__wrapped__(768, 3072, "gelu_new", "fp32") == 1.0


@pytest.mark.skipif(not matmul.has_prepacked_linear(torch.bfloat16), reason="oneDNN does not pack bf16 weights here")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_measure_prepacking_speedup_has_no_side_effects(precision: str) -> None:
    threads = torch.get_num_threads()
    assert 0.01 < device.measure_prepacking_speedup.__wrapped__(16, 64, "gelu", precision) < 100
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
