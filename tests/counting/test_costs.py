"""FLOPs against the published formula, activations against what autograd keeps, batches against the bytes."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from albert_cli.bench import memory
from albert_cli.bench.inputs import random_batch
from albert_cli.counting import costs
from albert_cli.counting.activations import activation_bytes, largest_batch, working_bytes
from albert_cli.counting.costs import GPU_SETUP, LENGTHS, ComputeSetup, Precision, count_parameters
from albert_cli.model.config import PRESETS, AttentionForm, ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.model.sparse_attention import is_neighbor
from albert_cli.training.optimizers import make_optimizer, state_tensors
from albert_cli.training.settings import OptimizerSettings, TrainSettings

BASE = PRESETS["albert-base"]
CPU = ComputeSetup("cpu", "fp32")
SMALL = ModelConfig(
    vocab_size=2000,
    embedding_size=32,
    hidden_size=128,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=256,
)
SHAPES = {
    "shared": SMALL,
    "not shared": replace(SMALL, sharing="none"),
    "one layer": replace(SMALL, num_hidden_layers=1),
    "E = H": replace(SMALL, embedding_size=128),
    "narrow feed-forward": replace(SMALL, intermediate_size=128, num_attention_heads=8),
    "inner blocks": replace(SMALL, num_hidden_groups=2, inner_group_num=2),
    "ReLU": replace(SMALL, hidden_act="relu"),
    "dropout": replace(SMALL, hidden_dropout_prob=0.1),
    "attention dropout": replace(SMALL, attention_probs_dropout_prob=0.1),
}


# ---------------------------------------------------------------- FLOPs


@pytest.mark.parametrize(
    ("name", "length", "gigaflops"),
    [
        ("albert-base", 128, 0.528),
        ("albert-base", 512, 0.570),
        ("albert-large", 128, 1.854),
        ("albert-large", 512, 1.967),
        ("albert-xlarge", 128, 7.33),
        ("albert-xlarge", 512, 7.56),
        ("albert-xxlarge", 128, 14.58),
        ("albert-xxlarge", 512, 14.81),
    ],
)
def test_training_flops_of_releases_equal_known_values(name: str, length: int, gigaflops: float) -> None:
    """3 (L (24 H^2 + 4 S H) + 0.15 (2 H E + 2 E V) + 2 E H) a token, for F = 4 H."""
    assert costs.training_flops(PRESETS[name], length) / 1e9 == pytest.approx(gigaflops, rel=2e-3)


def test_flops_without_last_layer_rows_drop_by_known_share() -> None:
    for name, share in (("albert-base", 0.059), ("albert-large", 0.029), ("albert-xxlarge", 0.059)):
        whole, pruned = (costs.training_flops(PRESETS[name], 512, pruned=p) for p in (False, True))
        assert 1 - pruned / whole == pytest.approx(share, abs=1.5e-3)


@pytest.mark.parametrize("name", ["shared", "E = H", "narrow feed-forward", "inner blocks", "one layer"])
def test_forward_flops_equal_torch_count(name: str) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    config, sequences, length = SHAPES[name], 2, 100
    batch = random_batch([length] * sequences, config.vocab_size)
    tokens = pack(batch, torch.device("cpu"), batch.masked_index)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        PretrainingModel(config)(tokens)
    pooler_and_order = sequences * 2 * (config.hidden_size**2 + 2 * config.hidden_size)
    expected = sequences * length * costs.forward_flops(config, length, pruned=True) + pooler_and_order
    assert counter.get_total_flops() == pytest.approx(expected, rel=1e-3)


@given(st.integers(2, 300), st.integers(1, 90), st.sampled_from(["window", "block"]))
def test_seen_tokens_equal_the_mask_count(length: int, size: int, form: AttentionForm) -> None:
    config = replace(SMALL, attention=form, attention_window=size, attention_block=size)
    i, j = np.arange(length)[:, None], np.arange(length)
    seen = is_neighbor(config, i, j) | (i == 0) | (j == 0)
    assert costs.mean_attended_tokens(config, length) * length == pytest.approx(seen.sum())
    lengths = np.array([length, 2 * length, 7])
    total = sum(int(n) * costs.training_flops(config, int(n), masked_fraction=0.0) for n in lengths)
    assert costs.batch_flops(config, lengths, 0) == pytest.approx(total)


# ---------------------------------------------------------------- activations


def kept_bytes(config: ModelConfig, sequences: int, length: int, precision: Precision) -> int:
    """Bytes of the storages that autograd holds after a pretraining step's forward pass, parameters apart."""
    batch = random_batch([length] * sequences, config.vocab_size)
    return memory.measure_saved_bytes(config, batch, TrainSettings(precision=precision), torch.device("cpu"))[0]


@pytest.mark.parametrize("length", [64, 128])
@pytest.mark.parametrize("name", SHAPES)
def test_activations_in_fp32_equal_saved_tensors(name: str, length: int) -> None:
    """The difference of two batches: what grows with the batch, and not what does not."""
    one, three = (kept_bytes(SHAPES[name], n, length, "fp32") for n in (1, 3))
    assert activation_bytes(SHAPES[name], length, CPU) == pytest.approx((three - one) / 2, rel=0.1)


def test_activations_in_bf16_equal_saved_tensors() -> None:
    one, three = (kept_bytes(SMALL, n, 128, "bf16") for n in (1, 3))
    assert activation_bytes(SMALL, 128, ComputeSetup("cpu", "bf16")) == pytest.approx((three - one) / 2, rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("form", ["window", "block"])
def test_activations_of_sparse_forms_equal_saved_tensors(form: AttentionForm, precision: Precision) -> None:
    config = replace(SMALL, max_position_embeddings=1024, attention=form, attention_window=32, attention_block=32)
    one, three = (kept_bytes(config, n, 512, precision) for n in (1, 3))
    estimated = activation_bytes(config, 512, ComputeSetup("cpu", precision))
    assert estimated == pytest.approx((three - one) / 2, rel=0.15)
    longer = activation_bytes(config, 1024, ComputeSetup("cpu", precision))
    assert longer == pytest.approx(2 * estimated, rel=0.02)


class Living(TorchDispatchMode):
    """The bytes of all storages that operations make while it is open, and the most that lived at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {a.untyped_storage().data_ptr() for a in tree_leaves((args, kwargs)) if isinstance(a, Tensor)}
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in inputs:
                self.now += (size := tensor.untyped_storage().nbytes())
                self.most = max(self.most, self.now)
                weakref.finalize(tensor.untyped_storage(), self.gone, size)
        return result

    def gone(self, size: int) -> None:
        self.now -= size


def peak_bytes(config: ModelConfig, sequences: int, length: int, precision: str) -> int:
    """The most bytes that a pretraining step's forward and backward pass hold at once, weights and batch apart."""
    model = PretrainingModel(config).train()
    batch = random_batch([length] * sequences, config.vocab_size)
    tokens = pack(batch, torch.device("cpu"), batch.masked_index)
    labels = torch.from_numpy(batch.masked_labels.astype(np.int64))
    with Living() as living:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(model(tokens).masked.float(), labels)
        loss.backward()
    return int(living.most)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "config",
    [replace(SMALL, vocab_size=30_000), replace(SMALL, vocab_size=200), replace(SMALL, intermediate_size=2048)],
    ids=["logits", "block", "wide block"],
)
def test_peak_equals_memory_of_a_backward_pass(config: ModelConfig, precision: Precision) -> None:
    """The difference of two batches, as above; within 6 %."""
    two, four = (peak_bytes(config, n, 128, precision) for n in (2, 4))
    setup = ComputeSetup("cpu", precision)
    estimated = activation_bytes(config, 128, setup) + working_bytes(config, 128, setup)
    assert estimated == pytest.approx((four - two) / 2, rel=0.06)


@pytest.mark.parametrize(
    ("name", "compiled", "tokens", "counted"),
    [
        ("base", False, 28_608, 10.79),
        ("base", True, 28_608, 8.78),
        ("large", False, 28_608, 26.54),
        ("xlarge", False, 13_632, 25.11),
        ("xlarge", True, 13_632, 22.07),
        ("xxlarge", False, 13_632, 27.04),
    ],
)
def test_peak_equals_the_recorded_gpu_allocation(name: str, compiled: bool, tokens: int, counted: float) -> None:
    """GB of a step with LAMB, bf16, no dropout, random text at 512: torch 2.11's allocator without a GPU under it."""
    config, setup = PRESETS[f"albert-{name}"], ComputeSetup(compiled=compiled)
    a_sequence = activation_bytes(config, 512, setup) + working_bytes(config, 512, setup)
    assert (costs.state_bytes(config).total + tokens / 512 * a_sequence) / 1e9 == pytest.approx(counted, rel=0.03)


def test_activations_with_sharing_do_not_shrink() -> None:
    for sharing in ("all", "attention", "ffn", "none"):
        assert activation_bytes(replace(BASE, sharing=sharing), 512) == activation_bytes(BASE, 512)


def test_checkpointing_saves_block_inputs_and_recomputes_one() -> None:
    full, less = (activation_bytes(PRESETS["albert-xxlarge"], 512, checkpointed=c) for c in (False, True))
    inputs = 12 * 512 * 4096 * 4
    assert inputs < less < inputs + full / 8
    one = replace(BASE, num_hidden_layers=1)
    assert activation_bytes(one, 512, checkpointed=True) > activation_bytes(one, 512)


def test_activations_with_dropout_include_masks() -> None:
    plain, dropped = (replace(BASE, hidden_dropout_prob=p) for p in (0.0, 0.1))
    more = activation_bytes(dropped, 512, GPU_SETUP) - activation_bytes(plain, 512, GPU_SETUP)
    assert more == pytest.approx(2 * 12 * 512 * 768, rel=0.1)  # a byte per number, twice per block
    attention = replace(BASE, attention_probs_dropout_prob=0.1)
    assert activation_bytes(attention, 512, GPU_SETUP) == activation_bytes(BASE, 512, GPU_SETUP)
    assert activation_bytes(attention, 512, CPU) > 2 * activation_bytes(BASE, 512, CPU)


# ---------------------------------------------------------------- state and batches


def test_state_equals_memory_of_training() -> None:
    model = PretrainingModel(SMALL)
    optimizer = make_optimizer(model, OptimizerSettings())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    state = costs.state_bytes(SMALL, CPU)
    assert state.weights == sum(p.nbytes for p in model.parameters())
    assert state.gradients == sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert state.moments == sum(m.nbytes for m in state_tensors(optimizer).values())
    assert (state.copy, state.total) == (0, 16 * count_parameters(SMALL).total)
    assert costs.state_bytes(SMALL, GPU_SETUP).total == 18 * count_parameters(SMALL).total


@given(
    name=st.sampled_from(sorted(PRESETS)),
    length=st.sampled_from(LENGTHS),
    memory=st.integers(10**9, 10**12),
    setup=st.sampled_from([GPU_SETUP, CPU, ComputeSetup("cuda", "fp32")]),
    checkpointed=st.booleans(),
)
def test_largest_batch_fits_and_one_more_does_not(
    name: str, length: int, memory: int, setup: ComputeSetup, checkpointed: bool
) -> None:
    config = PRESETS[name]
    batch = largest_batch(config, length, memory, setup, checkpointed=checkpointed)
    state = costs.state_bytes(config, setup)
    a_sequence = activation_bytes(config, length, setup, checkpointed=checkpointed)
    a_sequence += working_bytes(config, length, setup)
    if batch:
        assert state.total + max(batch * a_sequence, state.update) <= 0.9 * memory
    elif state.total + state.update <= 0.9 * memory:
        assert state.total + a_sequence > 0.9 * memory - 1
    if state.total + state.update <= 0.9 * memory:
        assert state.total + (batch + 1) * a_sequence > 0.9 * memory - 1


def test_largest_batch_is_zero_if_the_state_does_not_fit() -> None:
    assert largest_batch(PRESETS["bert-xlarge"], 64, 12 * 10**9) == 0


# ---------------------------------------------------------------- sizes


@given(st.floats(1, 1e15))
def test_format_size_keeps_three_digits(size: float) -> None:
    number, unit = costs.format_bytes(size).split()
    assert len(number.replace(".", "").lstrip("0") or "0") >= 3
    power = ["B", "kB", "MB", "GB", "TB"].index(unit)
    assert float(number) * 1000**power == pytest.approx(size, rel=5.1e-3)


def test_without_sharing_counts_each_use_of_a_block() -> None:
    """xxlarge stores 223 million parameters and multiplies with two billion; a BERT applies what it has."""

    def count_applied(config: ModelConfig) -> int:
        return count_parameters(costs.without_sharing(config)).total

    wide = count_parameters(PRESETS["albert-xxlarge"])
    assert count_applied(PRESETS["albert-xxlarge"]) == 2_437_773_824 + wide.total - wide.with_pooler
    assert count_applied(PRESETS["bert-base"]) == count_parameters(PRESETS["bert-base"]).total
    sizes = replace(BASE, group_sizes=(1, 10, 1))
    assert count_applied(sizes) == count_applied(BASE)
    assert count_parameters(sizes).attention == 3 * count_parameters(BASE).attention


def test_ring_traffic_is_at_most_twice_the_gradient() -> None:
    gradient = 4 * count_parameters(BASE).total
    assert [costs.gradient_bytes(BASE, n) for n in (1, 2, 4)] == [0, gradient, gradient * 3 // 2]
    assert costs.gradient_bytes(BASE, 512) == pytest.approx(2 * gradient, rel=0.002)
    ratio = costs.gradient_bytes(costs.without_sharing(BASE), 8) / costs.gradient_bytes(BASE, 8)
    assert ratio == pytest.approx(89_780_402 / 11_813_810, rel=1e-6)
