"""The counts are exact: pinned figures, and instantiated models of every shape of the paper."""

from __future__ import annotations

from dataclasses import replace

import pytest

from albert_cli.counting import shapes
from albert_cli.counting.costs import count_parameters
from albert_cli.counting.paper import PAPER_MODELS, PAPER_SHAPES
from albert_cli.model.config import PRESETS

BASE = PRESETS["albert-base"]


def test_params_inner_blocks_have_separate_weights() -> None:
    assert count_parameters(replace(BASE, inner_group_num=2)).with_pooler == 18_771_456


def test_params_of_base_add_up_by_part() -> None:
    counts = count_parameters(BASE)
    assert (counts.embeddings, counts.projection, counts.attention + counts.feed_forward) == (
        3_906_048,
        99_072,
        7_087_872,
    )
    assert (counts.pooler, counts.mlm_head, counts.sentence_order_head) == (590_592, 128_688, 1_538)


@pytest.mark.parametrize("name", [name for names in PAPER_SHAPES.values() for name in names])
def test_params_equal_the_built_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    from albert_cli.model.heads import PretrainingModel

    config = shapes.find_shape(name).config
    counts = count_parameters(config)
    with torch.device("meta"):
        model = PretrainingModel(config)

    def held(*prefixes: str) -> int:
        return sum(p.numel() for n, p in model.named_parameters() if n.startswith(prefixes))

    assert held("encoder.embeddings.") == counts.embeddings
    assert held("encoder.projection.") == counts.projection
    assert held("encoder.attention.") == counts.attention
    assert held("encoder.feed_forward.") == counts.feed_forward
    assert held("encoder.pooler.") == counts.pooler
    assert held("masked.") == counts.mlm_head
    assert held("order.") == counts.sentence_order_head
    assert held("") == counts.total


# What Hugging Face has a class for is compared with that class, too.
EXPRESSIBLE = {
    **{name: PRESETS[name] for name in PAPER_MODELS},
    **{f"groups {g}": replace(BASE, num_hidden_groups=g) for g in (3, 12)},
    **{f"E {e}": replace(BASE, embedding_size=e) for e in (64, 256)},
    "inner 2": replace(BASE, inner_group_num=2, num_hidden_groups=2),
    "30522": replace(PRESETS["bert-base"], vocab_size=30522),
}


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_params_equal_the_built_transformers_model(name: str) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    ours = EXPRESSIBLE[name]
    bert = ours.sharing == "none"
    kind = "Bert" if bert else "Albert"
    shared = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    keys = shared if bert else (*shared, "embedding_size", "num_hidden_groups", "inner_group_num")
    config = getattr(transformers, f"{kind}Config")(**{key: getattr(ours, key) for key in keys})
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForPreTraining")(config)
    encoder = model.bert if bert else model.albert
    assert sum(p.numel() for p in encoder.parameters()) == count_parameters(ours).with_pooler
    assert sum(p.numel() for p in model.parameters()) == count_parameters(ours).total
