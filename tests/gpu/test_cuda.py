"""What only a CUDA device can show: its kernels compute what the CPU computes in fp32. Skipped where there is none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from albert_cli.bench import correctness
from albert_cli.bench.step import pretraining_loss
from albert_cli.data.batches import PackedBatch
from albert_cli.model import block, hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import autocast, place, reproducible, resolve_auto
from albert_cli.training.pretrain import pretrain
from albert_cli.training.settings import TrainSettings
from tests.command import albert
from tests.model.shapes import random_batch

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
}
PLAIN = TrainSettings(precision="fp32", compile="off")


def computed(
    config: ModelConfig, batch: PackedBatch, settings: TrainSettings, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(loss, all gradients in a row) of the pretraining model with the weights of seed 0, in fp32 on the CPU."""
    torch.manual_seed(0)
    model = PretrainingModel(config).train()
    place(model, settings, device)
    with autocast(settings.precision, device):
        loss = pretraining_loss(model, batch, device)
    loss.backward()
    gradients = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    return loss.detach().cpu().float(), gradients.cpu().float()


def assert_alike(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor], tolerance: float) -> None:
    assert float(one[0]) == pytest.approx(float(other[0]), rel=tolerance)
    difference = torch.linalg.vector_norm(one[1] - other[1]) / torch.linalg.vector_norm(other[1])
    assert float(difference) < 10 * tolerance


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("lengths", [(128, 5, 77, 64), (96, 96)], ids=["ragged", "equal"])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("bf16", 1e-2)])
def test_losses_and_gradients_are_those_of_the_cpu(
    name: str, lengths: tuple[int, ...], precision: str, tolerance: float
) -> None:
    config = SHAPES[name]
    batch = random_batch(lengths, config)
    expected = computed(config, batch, PLAIN, CPU)
    settings = replace(PLAIN, precision=precision)  # type: ignore[arg-type]
    assert_alike(computed(config, batch, settings, CUDA), expected, tolerance)


def test_variable_length_attention_is_used_and_equals_the_padded_form(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = random_batch((128, 5, 77, 64), SHAPE)
    settings = replace(PLAIN, precision="bf16")
    calls: list[int] = []
    kernel = block.varlen_attn

    def counted(*arguments: object, **options: object) -> object:
        calls.append(1)
        return kernel(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(block, "varlen_attn", counted)
    packed = computed(SHAPE, batch, settings, CUDA)
    assert len(calls) == SHAPE.num_hidden_layers
    monkeypatch.setattr(block, "has_varlen", lambda x, dropout: False)
    assert_alike(packed, computed(SHAPE, batch, settings, CUDA), 1e-2)


def test_attention_dropout_takes_the_padded_form() -> None:
    config = replace(SHAPE, attention_probs_dropout_prob=0.1)
    loss, gradients = computed(config, random_batch((128, 5), config), replace(PLAIN, precision="bf16"), CUDA)
    assert torch.isfinite(loss) and torch.isfinite(gradients).all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_compiled_block_computes_the_same(precision: str) -> None:
    settings = replace(PLAIN, precision=precision)  # type: ignore[arg-type]
    for lengths in ((128, 5, 77), (50, 60), (96, 96)):
        batch = random_batch(lengths, SHAPE)
        compiled = computed(SHAPE, batch, replace(settings, compile="on"), CUDA)
        assert_alike(compiled, computed(SHAPE, batch, settings, CUDA), 1e-4 if precision == "fp32" else 1e-2)


def test_auto_takes_bf16_and_compiles() -> None:
    settled = resolve_auto(TrainSettings(), SHAPE, CUDA, sequences=8, length=128)
    assert (settled.precision, settled.compile, settled.threads) == ("bf16", "on", "auto")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recomputed_activations_change_nothing_but_memory(dropout: float) -> None:
    config = replace(SHAPE, hidden_dropout_prob=dropout, num_hidden_layers=12)
    batch = random_batch((128,) * 64, config)
    peaks, found = [], []
    for again in (False, True):
        torch.cuda.reset_peak_memory_stats()
        settings = replace(PLAIN, precision="bf16", checkpoint_activations=again)
        found.append(computed(config, batch, settings, CUDA))
        peaks.append(torch.cuda.max_memory_allocated())
    assert_alike(found[1], found[0], 1e-3)
    assert peaks[1] < 0.6 * peaks[0]


def test_the_bench_finds_every_form_right() -> None:
    found = correctness.measure(replace(SHAPE, max_position_embeddings=512), CUDA)
    assert found["is_right"], found
    assert list(found["forms"]) == list(correctness.FORMS)


def test_a_part_of_the_bench_from_end_to_end(tmp_path: Path) -> None:
    shape = ("hidden_size=256", "num_attention_heads=4", "intermediate_size=512", "num_hidden_layers=2")
    few = ["--tokens", 2048, "--rounds", 2, *(word for value in shape for word in ("-s", f"model.{value}"))]
    albert("bench", "gpu", "--out", tmp_path, "--part", "base-s128", *few)
    full = json.loads((tmp_path / "bench.json").read_text())["parts"]["base-s128"]["results"][""]
    assert list(full["variants"]) == ["albert", "transformers", "transformers, compiled"]
    assert full["memory"]["dropout 0"]["peak"] > 0 and full["compiled"]


@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_deterministic_kernels_give_the_same_bits(precision: str, dropout: float, compiled: str) -> None:
    """Sequences long and many enough that attention's backward pass adds up in several blocks."""
    config = replace(SHAPE, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    batch = random_batch((128, 5, 77, 64) * 16, config)
    settings = replace(PLAIN, precision=precision, compile=compiled, deterministic=True)  # type: ignore[arg-type]
    found = []
    for _ in range(3):
        torch._dynamo.reset()  # as in another process
        with reproducible(settings.deterministic):
            found.append(computed(config, batch, settings, CUDA))
    for loss, gradients in found[1:]:
        assert torch.equal(loss, found[0][0]) and torch.equal(gradients, found[0][1])
    if not dropout:
        assert_alike(found[0], computed(config, batch, PLAIN, CPU), 1e-4 if precision == "fp32" else 1e-2)


def test_a_run_with_a_start_begins_from_the_weights_that_a_cpu_makes(tiny_data: Path, tmp_path: Path) -> None:
    """They are made on the host, wherever the model lies."""
    short = ["schedule.total_steps=2", "train.eval_sequences=8", "train.precision=fp32"]
    for device in ("cpu", "cuda"):
        pretrain("mini/docs", tiny_data, tmp_path / device, short, device=device)
    cpu, cuda = (hub.read(tmp_path / device / "start").tensors for device in ("cpu", "cuda"))
    assert all(torch.allclose(tensor, cuda[name], atol=1e-5) for name, tensor in cpu.items())
