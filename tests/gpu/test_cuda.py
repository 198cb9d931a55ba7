"""Comparisons of a CUDA device with fp32 on the CPU; skipped without a CUDA device."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from albert_cli.model import encoder, hub, sparse_attention
from albert_cli.model.block import self_attention
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.ranks import RankGroup
from albert_cli.training.device import deterministic_kernels, prepare_model, resolve_auto
from albert_cli.training.optimizers import clip_gradients, make_optimizer, update_weights
from albert_cli.training.pretrain import pretrain
from albert_cli.training.reduction import reduce_during_backward
from albert_cli.training.settings import OptimizerSettings, TrainSettings
from benchmarks import correctness, gpu, kernels
from benchmarks.correctness import compute_loss_and_gradients
from tests.helpers.benchmarks import run_benchmark
from tests.helpers.jobs import MakeJob, make_loop
from tests.helpers.losses import SHAPE as SMALL
from tests.helpers.losses import Operations, losses
from tests.helpers.shapes import random_batch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHAPE = ModelConfig(
    vocab_size=500,
    embedding_size=64,
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=1024,
    max_position_embeddings=128,
)
SHAPES = {
    "shared": SHAPE,
    "not shared": replace(SHAPE, sharing="none"),
    "attention shared": replace(SHAPE, sharing="attention"),
    "head of 32": replace(SHAPE, num_attention_heads=8),
    "head of 128": replace(SHAPE, num_attention_heads=2),
}
PLAIN = TrainSettings(precision="fp32", compile="off")


def assert_close(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tolerance: float) -> None:
    """Compare a loss to a relative error of `tolerance`, and its gradients to ten times as much."""
    loss, gradients = actual
    expected_loss, expected_gradients = expected
    assert float(loss) == pytest.approx(float(expected_loss), rel=tolerance)
    difference = torch.linalg.vector_norm(gradients - expected_gradients) / torch.linalg.vector_norm(expected_gradients)
    assert float(difference) < 10 * tolerance


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("lengths", [(128, 5, 77, 64), (96, 96)], ids=["ragged", "equal"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 1e-2)])
def test_cuda_losses_and_gradients_equal_the_cpu(
    name: str, lengths: tuple[int, ...], precision: str, tolerance: float
) -> None:
    config = SHAPES[name]
    batch = random_batch(lengths, config)
    expected = compute_loss_and_gradients(config, batch, PLAIN, CPU)
    settings = replace(PLAIN, precision=precision)  # type: ignore[arg-type]
    assert_close(compute_loss_and_gradients(config, batch, settings, CUDA), expected, tolerance)


@pytest.mark.parametrize("attention", ["window", "block"])
@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 1e-2)])
@pytest.mark.parametrize("heads", [4, 32], ids=["head of 64", "head of 8"])  # a head of 8 is too small for flex
def test_cuda_sparse_attention_equals_the_cpu(
    attention: str, compiled: str, precision: str, tolerance: float, heads: int
) -> None:
    """Compiled code uses `flex_attention` for heads of 64; the other cases compute in chunks."""
    changes: dict[str, Any] = {"attention": attention, "attention_window": 16, "attention_block": 16}
    config = replace(SHAPE, num_attention_heads=heads, attention_global="sep", **changes)
    assert sparse_attention.has_flex(CUDA, 0.0, config.head_size) == (heads == 4)
    settings = replace(PLAIN, precision=precision, compile=compiled)  # type: ignore[arg-type]
    for lengths in ((128, 5, 77, 64), (96, 96), (50, 128)):
        batch = random_batch(lengths, config)
        expected = compute_loss_and_gradients(config, batch, PLAIN, CPU)
        assert_close(compute_loss_and_gradients(config, batch, settings, CUDA), expected, tolerance)


def test_varlen_attention_equals_padded_form(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch((128, 5, 77, 64), SHAPE)
    settings = replace(PLAIN, precision="bf16")
    with Operations() as operations:
        packed = compute_loss_and_gradients(SHAPE, batch, settings, CUDA)
    assert {"_flash_attention_forward", "_flash_attention_backward"} <= operations.names
    monkeypatch.setattr(encoder, "has_varlen", lambda device, dtype, head_size: False)
    assert_close(packed, compute_loss_and_gradients(SHAPE, batch, settings, CUDA), 1e-2)


def test_varlen_dropout_keeps_the_mean() -> None:
    """The kernel samples other numbers than the padded form, so the means of many samples are compared."""
    tokens = pack(random_batch((128, 5, 77, 64)), CUDA)
    qkv = torch.randn(len(tokens.ids), 3, 4, 64, device=CUDA, dtype=torch.bfloat16)
    expected = self_attention(qkv, tokens.layout, 0.0, varlen=True).float()
    for varlen in (True, False):
        samples = torch.stack([self_attention(qkv, tokens.layout, 0.1, varlen=varlen).float() for _ in range(400)])
        deviation = samples.std(0).mean()
        # The mean of 400 samples has a standard error of 1/20 of the deviation of one sample; bf16 adds rounding.
        assert float((samples.mean(0) - expected).abs().mean()) < 0.2 * float(deviation)


def test_varlen_dropout_with_equal_seed_gives_equal_loss() -> None:
    config = replace(SHAPE, attention_probs_dropout_prob=0.1)
    settings = replace(PLAIN, precision="bf16")
    first, second = (
        compute_loss_and_gradients(config, random_batch((128, 5), config), settings, CUDA) for _ in range(2)
    )
    assert_close(first, second, 1e-3)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_compiled_block_equals_uncompiled_block(precision: str, dropout: float) -> None:
    """Dropout is compared too, because compiled and uncompiled code sample the same numbers."""
    settings = replace(PLAIN, precision=precision)  # type: ignore[arg-type]
    tolerance = 1e-4 if precision == "fp32" else 1e-2
    config = SHAPE.with_dropout(dropout)
    for lengths in ((128, 5, 77), (50, 60), (96, 96)):
        batch = random_batch(lengths, config)
        compiled = compute_loss_and_gradients(config, batch, replace(settings, compile="on"), CUDA)
        expected = compute_loss_and_gradients(config, batch, settings, CUDA)
        assert_close(compiled, expected, tolerance)


def test_resolve_auto_on_cuda_takes_bf16_and_compiles() -> None:
    resolved = resolve_auto(TrainSettings(), SHAPE, CUDA, sequences=8, length=128)
    assert (resolved.precision, resolved.compile, resolved.threads) == ("bf16", "on", "auto")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recomputed_activations_change_only_the_memory(dropout: float) -> None:
    config = replace(SHAPE, hidden_dropout_prob=dropout, num_hidden_layers=12)
    batch = random_batch((128,) * 64, config)
    peaks = []
    results = []
    for recompute in (False, True):
        torch.cuda.reset_peak_memory_stats()
        settings = replace(PLAIN, precision="bf16", checkpoint_activations=recompute)
        results.append(compute_loss_and_gradients(config, batch, settings, CUDA))
        peaks.append(torch.cuda.max_memory_allocated())
    assert_close(results[1], results[0], 1e-3)
    assert peaks[1] < 0.6 * peaks[0]


def test_measure_correctness_of_default_settings_is_correct() -> None:
    config = replace(SHAPE, max_position_embeddings=512)
    result = correctness.measure_correctness(config, TrainSettings(), CUDA)
    assert result.is_correct, result
    assert result.form == "bf16, compiled"


def test_gpu_benchmark_part_runs_end_to_end(tmp_path: Path) -> None:
    shape = ("hidden_size=256", "num_attention_heads=4", "intermediate_size=512", "num_hidden_layers=2")
    options = ["--tokens", 2048, "--rounds", 2, *(word for value in shape for word in ("-s", f"model.{value}"))]
    run_benchmark(gpu.app, "--out", tmp_path, "--part", "base-s128", *options)
    measured = json.loads((tmp_path / "bench.json").read_text())["measured"]
    result = measured["base-s128"]["results"][""]  # "" labels the only result of the part
    assert list(result["variants"]) == ["albert", "transformers", "transformers, compiled"]
    assert result["memory"]["dropout 0"]["peak"] > 0
    assert result["compiled"]


@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_kernels_repeat_the_same_bits(precision: str, dropout: float, compiled: str) -> None:
    """The batch is so large that attention's backward pass adds up gradients in several blocks."""
    config = replace(SHAPE, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    batch = random_batch((128, 5, 77, 64) * 16, config)
    settings = replace(PLAIN, precision=precision, compile=compiled, deterministic=True)  # type: ignore[arg-type]
    results = []
    for _ in range(3):
        torch._dynamo.reset()  # compile again, as another process does
        with deterministic_kernels(settings.deterministic):
            results.append(compute_loss_and_gradients(config, batch, settings, CUDA))
    for loss, gradients in results[1:]:
        assert torch.equal(loss, results[0][0])
        assert torch.equal(gradients, results[0][1])
    if not dropout:
        expected = compute_loss_and_gradients(config, batch, PLAIN, CPU)
        assert_close(results[0], expected, 1e-4 if precision == "fp32" else 1e-2)


def test_cuda_informed_init_equals_the_cpu(tiny_data: Path, tmp_path: Path) -> None:
    """The initial weights are computed on the CPU, whatever the device of the model."""
    overrides = ["schedule.total_steps=2", "train.eval_sequences=8", "train.precision=fp32"]
    for device in ("cpu", "cuda"):
        pretrain("mini/docs", tiny_data, tmp_path / device, overrides, device=device)
    cpu, cuda = (hub.read_checkpoint(tmp_path / device / "init").tensors for device in ("cpu", "cuda"))
    assert all(torch.allclose(tensor, cuda[name], atol=1e-5) for name, tensor in cpu.items())


def compute_on_both(compute: Callable[[torch.device], Tensor]) -> tuple[Tensor, Tensor]:
    """Return what a function computes on the CPU and on CUDA, both in the host's memory."""
    return compute(CPU), compute(CUDA).cpu()


@pytest.mark.parametrize("name", ["lamb", "nvlamb", "adamw"])
def test_cuda_clipped_updates_equal_the_cpu(name: str) -> None:
    def train_on(device: torch.device) -> Tensor:
        torch.manual_seed(0)
        model = PretrainingModel(SHAPE).to(device)
        settings = OptimizerSettings(name=name, lr=1e-2, clip_norm=0.5)  # type: ignore[arg-type]
        optimizer = make_optimizer(model, settings)
        for step in range(3):
            rng = torch.Generator().manual_seed(step)
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=rng).to(device)
            clip_gradients(model, settings.clip_norm)
            update_weights(optimizer, settings.peak_lr)
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    cpu, cuda = compute_on_both(train_on)
    assert float((cpu - cuda).norm()) < 1e-5 * float(cpu.norm())


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", list(losses(SMALL, CPU)))
def test_cuda_loss_of_each_head_equals_the_cpu(name: str, deterministic: bool) -> None:
    def compute_on(device: torch.device) -> Tensor:
        torch.manual_seed(0)
        with deterministic_kernels(deterministic):
            loss = losses(SMALL.with_dropout(0.0), device)[name]()  # the devices sample different numbers
            loss.backward()
        return loss.detach()

    cpu, cuda = compute_on_both(compute_on)
    assert float(cpu) == pytest.approx(float(cuda), rel=1e-4)


def test_compiled_block_with_recomputation_equals_without() -> None:
    batch = random_batch((128, 5, 77), SHAPE)
    settings = replace(PLAIN, precision="bf16", compile="on")
    recomputed = compute_loss_and_gradients(SHAPE, batch, replace(settings, checkpoint_activations=True), CUDA)
    stored = compute_loss_and_gradients(SHAPE, batch, settings, CUDA)
    assert_close(recomputed, stored, 1e-2)


SHORT_RUN = ["schedule.total_steps=12", "train.eval_sequences=8", "train.save_every=6", "train.deterministic=true"]


def test_cuda_run_resumes_to_the_same_bytes(tiny_data: Path, tmp_path: Path) -> None:
    first = pretrain("mini/docs", tiny_data, tmp_path / "first", SHORT_RUN, device="cuda")
    second = pretrain("mini/docs", tiny_data, tmp_path / "second", SHORT_RUN, device="cuda")
    assert second.model_sha256 == first.model_sha256
    shutil.rmtree(tmp_path / "second" / "step-00000012")
    resumed = pretrain("mini/docs", tiny_data, tmp_path / "second", SHORT_RUN, device="cuda")
    assert resumed.model_sha256 == first.model_sha256


def test_training_step_synchronizes_once_without_recompiling(make_job: MakeJob, recipe: Path, tmp_path: Path) -> None:
    """Train 200 steps with batches of many sizes, then profile a few more."""
    overrides = ["train.compile=on", "train.precision=bf16", "train.save_every=0", "schedule.total_steps=300"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    job = make_job()
    prepare_model(job.model, replace(PLAIN, compile="on"), CUDA)
    steps = make_loop(job, tmp_path / "run", recipe, *overrides).steps(None, None)
    graphs = []
    for _ in range(200):
        next(steps)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[10] == graphs[-1]
    assert graphs[-1] <= 4  # three graphs of the block, one of the losses

    def train_step() -> float:
        next(steps)
        return 0.0  # `profile_step` ignores the value

    profile = kernels.profile_step(train_step, CUDA)
    steps.close()
    assert profile.waits == 1, profile  # for the check that all values are finite
    assert profile.pageable_copies == 0, profile


def test_nccl_group_of_one_rank_sums_and_broadcasts(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29555")):
        monkeypatch.setenv(name, value)
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    try:
        group = RankGroup(0, 2)  # a world size of 1 would skip the communication
        model = torch.nn.Linear(300, 300).to(CUDA)
        with reduce_during_backward(model, group, torch.bfloat16):
            model(torch.ones(4, 300, device=CUDA)).sum().backward()
        assert model.weight.grad is not None
        assert torch.equal(model.weight.grad, torch.full((300, 300), 4.0).to(CUDA))
        assert group.broadcast(1.5) == 1.5
        group.barrier()
    finally:
        dist.destroy_process_group()
