"""Tests of the encoder: shared weights, initial weights, dropout and activations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from albert_cli.counting import costs
from albert_cli.matmul import has_prepacked_linear, prepack_weight
from albert_cli.model.block import ACTIVATIONS, block
from albert_cli.model.encoder import Encoder
from albert_cli.model.packing import pack
from tests.helpers.shapes import ALL_SHAPES, TINY, random_batch

CPU = torch.device("cpu")
BATCH = random_batch((20, 3, 11))


@pytest.fixture
def packs_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the encoder pack weights for batches of any size."""
    monkeypatch.setattr("albert_cli.model.encoder.MIN_PREPACKED_ROWS", 0)


@pytest.mark.parametrize("name", ALL_SHAPES)
def test_encoder_any_shape_has_the_counted_parameters(name: str) -> None:
    encoder = Encoder(ALL_SHAPES[name])
    assert sum(p.numel() for p in encoder.parameters()) == costs.count_parameters(ALL_SHAPES[name]).with_pooler
    assert encoder(pack(BATCH, CPU), all_rows=True).shape == (len(BATCH.ids), 16)


def test_encoder_all_shared_adds_no_parameters_with_depth() -> None:
    sizes = {len(list(Encoder(replace(TINY, num_hidden_layers=n)).parameters())) for n in (1, 3, 12)}
    assert len(sizes) == 1
    deep, shallow = (Encoder(replace(TINY, num_hidden_layers=n)).eval() for n in (6, 3))
    deep.load_state_dict(shallow.state_dict())
    outputs = [e(pack(BATCH, CPU), all_rows=True) for e in (deep, shallow)]
    assert not torch.allclose(*outputs)


def test_encoder_three_shared_layers_equal_one_applied_thrice() -> None:
    encoder = Encoder(TINY).eval()
    tokens = pack(BATCH, CPU)
    x = encoder.projection(encoder.embeddings(tokens))  # type: ignore[misc]
    attention, feed_forward = encoder.attention[0], encoder.feed_forward[0]
    for _ in range(3):
        weights = attention.weights(), feed_forward.weights()  # type: ignore[operator]
        x = block(x, *weights, tokens.layout, None, encoder.block_settings())
    assert torch.allclose(x, encoder(tokens, all_rows=True), atol=1e-6)


@pytest.mark.skipif(not has_prepacked_linear(torch.float32), reason="torch without oneDNN")
@pytest.mark.parametrize("name", ALL_SHAPES)
@pytest.mark.usefixtures("packs_few_rows")
def test_encoder_prepacked_weights_change_only_rounding(name: str) -> None:
    encoder = Encoder(ALL_SHAPES[name]).eval()
    tokens = pack(BATCH, CPU, BATCH.masked_index)
    for all_rows in (False, True):
        with torch.inference_mode():
            encoder.prepacks_weights = False
            expected = encoder(tokens, all_rows=all_rows)
            encoder.prepacks_weights = True
            assert torch.allclose(encoder(tokens, all_rows=all_rows), expected, atol=1e-5)


@pytest.mark.skipif(not has_prepacked_linear(torch.float32), reason="torch without oneDNN")
@pytest.mark.usefixtures("packs_few_rows")
def test_encoder_packs_shared_weights_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[torch.Size] = []

    def count(weight: torch.Tensor, rows: int) -> torch.Tensor:
        packed.append(weight.shape)
        return prepack_weight(weight, rows)

    monkeypatch.setattr("albert_cli.model.encoder.prepack_weight", count)
    model = Encoder(replace(TINY, num_hidden_layers=5)).eval()
    model.prepacks_weights = True
    with torch.inference_mode():
        model(pack(BATCH, CPU), all_rows=True)
    hidden = TINY.hidden_size
    widths = [
        (3 * hidden, hidden),
        (hidden, hidden),
        (TINY.intermediate_size, hidden),
        (hidden, TINY.intermediate_size),
    ]
    assert sorted(packed) == sorted(widths)


def test_encoder_new_weights_are_truncated_and_biases_zero() -> None:
    torch.manual_seed(0)
    config = replace(TINY, hidden_size=64, vocab_size=500, initializer_range=0.02)
    for name, parameter in Encoder(config).state_dict().items():
        if "norm" in name:
            assert torch.equal(parameter, torch.full_like(parameter, float(name.endswith("weight"))))
        elif name.endswith("bias"):
            assert not parameter.any()
        else:
            assert float(parameter.abs().max()) <= 0.04
            if parameter.numel() > 1000:  # truncation at two deviations leaves 0.88 of the deviation
                assert float(parameter.std()) == pytest.approx(0.88 * 0.02, rel=0.1)


def test_encoder_dropout_acts_in_training_and_follows_seed() -> None:
    encoder = Encoder(replace(TINY, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3))
    tokens = pack(BATCH, CPU)

    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        out: torch.Tensor = encoder(tokens)
        return out

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    encoder.eval()
    assert torch.equal(run(1), run(2))


@pytest.mark.parametrize("name", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_encoder_each_dropout_rate_changes_the_output(name: str) -> None:
    encoder = Encoder(replace(TINY, **{name: 0.5}))  # type: ignore[arg-type]
    tokens = pack(BATCH, CPU)
    assert not torch.equal(encoder(tokens), encoder(tokens))


def test_encoder_gelu_new_is_the_tanh_approximation() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    expected = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    assert torch.allclose(ACTIVATIONS["gelu_new"](x), expected, atol=1e-12)
    assert not torch.allclose(ACTIVATIONS["gelu"](x), expected, atol=1e-5)
