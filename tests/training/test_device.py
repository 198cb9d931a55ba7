"""What "auto" stands for, and that compiling or recomputing changes nothing but time and memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from albert_cli import machine
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS, ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.training import device
from albert_cli.training.settings import TrainSettings
from tests.model.shapes import TINY, random_batch

CPU = torch.device("cpu")
BASE = PRESETS["albert-base"]


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(machine, "cpu", lambda: {"bf16_units": request.param})


@pytest.mark.parametrize(
    ("processor", "config", "expected"),
    [
        (["amx_bf16", "avx512_bf16"], BASE, "bf16"),
        (["amx_bf16", "avx512_bf16"], TINY, "fp32"),  # too narrow to gain
        (["avx512_bf16"], BASE, "fp32"),
        ([], BASE, "fp32"),
    ],
    indirect=["processor"],
)
def test_a_cpu_computes_in_bf16_where_that_is_faster(processor: None, config: ModelConfig, expected: str) -> None:
    assert device.settle(TrainSettings(), config, CPU).precision == expected
    for demanded in ("fp32", "bf16"):
        settings = replace(TrainSettings(), precision=demanded)
        assert device.settle(settings, config, CPU).precision == demanded


def test_a_cpu_compiles_only_when_it_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.settle(TrainSettings(), TINY, CPU).compile == "off"
    monkeypatch.setattr(machine, "compiler", lambda: None)
    assert device.settle(TrainSettings(), TINY, CPU).compile == "off"
    with pytest.raises(ConfigError, match="no C\\+\\+ compiler"):
        device.settle(replace(TrainSettings(), compile="on"), TINY, CPU)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_have_the_precision_that_was_settled(precision: str, dtype: torch.dtype) -> None:
    with device.autocast(precision, CPU):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def gradients(model: PretrainingModel, seed: int = 0) -> dict[str, Tensor]:
    batch = random_batch((20, 3, 11), seed=seed)
    model.zero_grad()
    torch.manual_seed(1)
    logits = model(pack(batch, CPU, batch.masked_index))
    (logits.masked.logsumexp(-1).sum() + logits.order.square().sum()).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recomputing_activations_changes_no_bit(dropout: float) -> None:
    model = PretrainingModel(replace(TINY, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)).train()
    kept = gradients(model)
    device.place(model, replace(TrainSettings(), checkpoint_activations=True), CPU)
    again = gradients(model)
    assert all(torch.equal(kept[name], again[name]) for name in kept) and len(kept) == len(again)


@pytest.mark.skipif(machine.compiler() is None, reason="no compiler")
def test_the_compiled_block_is_the_same_function_for_every_layer() -> None:
    model = PretrainingModel(replace(TINY, sharing="none"))
    batches = range(3)  # of the same lengths; other lengths would compile nothing again either
    plain = [gradients(model, seed) for seed in batches]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    device.place(model, replace(TrainSettings(), compile="on"), CPU)
    for seed in batches:
        for name, found in gradients(model, seed).items():
            assert torch.allclose(found, plain[seed][name], rtol=1e-4, atol=1e-5), name
    # Two forms of it, for six layers' applications a pass: all tokens, and the last layer's rows.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_torch_does_not_give_up_compiling_after_a_few_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forms that come late in a run count too: evaluation, sequences of one length, a single sequence."""
    model, batch = PretrainingModel(TINY), random_batch((20, 3, 11))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 1)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # what is traced, without kernels
    device.place(model, replace(TrainSettings(), compile="on"), CPU)
    model(pack(batch, CPU, batch.masked_index))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    monkeypatch.undo()
    torch._dynamo.reset()
