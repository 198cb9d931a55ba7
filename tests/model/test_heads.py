"""Tests of the heads: required logits, tied word embeddings, and dropout of the classifier."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from albert_cli.counting import costs
from albert_cli.model.heads import PretrainingModel, ScaledLinear, SequenceClassifier
from albert_cli.model.packing import pack
from tests.helpers.shapes import TINY, random_batch

CPU = torch.device("cpu")
BATCH = random_batch((20, 3, 11))


def test_heads_compute_logits_only_where_required() -> None:
    model = PretrainingModel(TINY)
    logits = model(pack(BATCH, CPU, BATCH.masked_index))
    assert logits.masked.shape == (len(BATCH.masked_index), TINY.vocab_size)
    assert logits.sentence_order.shape == (3, 2)
    empty = model(pack(BATCH, CPU, np.zeros(0, np.int32)))
    assert empty.masked.shape == (0, TINY.vocab_size)


def test_masked_head_decoder_is_the_word_embedding() -> None:
    model = PretrainingModel(TINY).eval()
    assert sum(p.numel() for p in model.parameters()) == costs.count_parameters(TINY).total
    tokens = pack(BATCH, CPU, BATCH.masked_index)
    before = model(tokens).masked
    unused = next(i for i in range(TINY.vocab_size) if i not in BATCH.ids)
    with torch.no_grad():
        model.encoder.embeddings.word.weight[unused] += torch.linspace(-1, 1, 8)
    changed = (model(tokens).masked != before).any(0).nonzero().flatten().tolist()
    assert changed == [unused]
    model(tokens).masked.sum().backward()
    gradient = model.encoder.embeddings.word.weight.grad
    assert gradient is not None and bool(gradient[unused].any())


def test_masked_head_unmasked_position_gets_no_gradient() -> None:
    model = PretrainingModel(replace(TINY, num_hidden_layers=1))
    model(pack(BATCH, CPU, BATCH.masked_index)).masked.sum().backward()
    assert model.encoder.pooler is not None and model.encoder.pooler.weight.grad is None
    assert model.order.weight.grad is None
    assert model.masked.bias.grad is not None
    assert model.masked.bias.grad.tolist() == [len(BATCH.masked_index)] * TINY.vocab_size


def test_classifier_dropout_acts_in_training_only() -> None:
    model = SequenceClassifier(replace(TINY, classifier_dropout_prob=0.5), 4)
    tokens = pack(BATCH, CPU)
    assert model(tokens).shape == (3, 4)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


def test_classifier_reads_only_the_first_token() -> None:
    model = SequenceClassifier(replace(TINY, num_hidden_layers=1), 2).eval()
    with torch.no_grad():  # with values of zero, no token reads from another one
        attention = model.encoder.attention[0]
        attention.value.weight.zero_()  # type: ignore[union-attr, operator]
    changed = replace(BATCH, ids=BATCH.ids.copy())
    changed.ids[1] = (BATCH.ids[1] + 1) % TINY.vocab_size
    assert torch.equal(model(pack(BATCH, CPU)), model(pack(changed, CPU)))
    changed.ids[0] = (BATCH.ids[0] + 1) % TINY.vocab_size
    assert not torch.equal(model(pack(BATCH, CPU))[0], model(pack(changed, CPU))[0])


def test_scaled_linear_saves_an_ordinary_linear_layer() -> None:
    x_NH = torch.randn(3, 8)
    plain = torch.nn.Linear(8, 1)
    scaled = ScaledLinear(8, 1)
    scaled.scale = 256.0
    scaled.load_state_dict(plain.state_dict())
    assert torch.equal(scaled.weight * 256, plain.weight)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(scaled.state_dict()[name], tensor)
    assert torch.allclose(scaled(x_NH), plain(x_NH), atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert scaled(x_NH).dtype == torch.float32
