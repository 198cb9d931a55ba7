"""Parameter counts by arithmetic: exact for every shape, without building a model or importing torch.

The formulas are checked against instantiated models in the tests. The paper rounds in a way of its own,
which `paper_count` reproduces and `paper_note` explains where the figures cannot be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from albert_cli import config as recipes
from albert_cli.console import table
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS, ModelConfig

# The shapes of the paper's comparison; v1 and v2 differ in dropout alone.
SEVEN: Final = tuple(name for name in PRESETS if not name.endswith("-v1"))


@dataclass(frozen=True)
class Counts:
    """Parameters by part, in numbers of scalars; attention and feed-forward sum over the distinct blocks."""

    embeddings: int
    projection: int
    attention: int
    feed_forward: int
    pooler: int
    mlm_head: int
    sentence_order_head: int

    @property
    def blocks(self) -> int:
        """All distinct transformer blocks, LayerNorms included."""
        return self.attention + self.feed_forward

    @property
    def heads(self) -> int:
        """Both pretraining heads; the decoder is the word table again and counts as nothing."""
        return self.mlm_head + self.sentence_order_head

    @property
    def without_pooler(self) -> int:
        """Embeddings and encoder alone."""
        return self.embeddings + self.projection + self.blocks

    @property
    def with_pooler(self) -> int:
        """What Hugging Face's bare model holds."""
        return self.without_pooler + self.pooler

    @property
    def total(self) -> int:
        """Everything that pretraining trains."""
        return self.with_pooler + self.heads


def count(config: ModelConfig) -> Counts:
    """Count the parameters of a shape (§3.1: word table V·E and projection E·H in place of V·H)."""
    e, h, f = config.embedding_size, config.hidden_size, config.intermediate_size
    rows = config.vocab_size + config.max_position_embeddings + config.type_vocab_size
    return Counts(
        embeddings=rows * e + 2 * e,
        projection=e * h + h if config.has_projection else 0,
        attention=config.num_attention_blocks * (4 * (h * h + h) + 2 * h),
        feed_forward=config.num_feed_forward_blocks * (h * f + f + f * h + h + 2 * h),
        pooler=h * h + h,
        mlm_head=h * e + e + 2 * e + config.vocab_size,
        sentence_order_head=2 * h + 2,
    )


# ---------------------------------------------------------------- beside the paper

_BASE, _LARGE, _XLARGE, _XXLARGE = (768, 12), (1024, 24), (2048, 24), (4096, 12)  # (hidden size, layers)
# (E, H, layers, sharing) -> the paper's figure in millions, and where it stands.
PAPER: Final[dict[tuple[int, int, int, str], tuple[int, str]]] = {
    (768, *_BASE, "none"): (108, "Table 1"),
    (1024, *_LARGE, "none"): (334, "Table 1"),
    (2048, *_XLARGE, "none"): (1270, "arXiv v1, Table 2"),
    (128, *_BASE, "all"): (12, "Table 1"),
    (128, *_LARGE, "all"): (18, "Table 1"),
    (128, *_XLARGE, "all"): (60, "Table 1"),
    (128, *_XXLARGE, "all"): (235, "Table 1"),
    **{(e, *_BASE, "none"): (m, "Table 3") for e, m in ((64, 87), (128, 89), (256, 93))},
    **{(e, *_BASE, "all"): (m, "Table 3") for e, m in ((64, 10), (256, 16), (768, 31))},
    **{(e, *_BASE, "attention"): (m, "Table 4") for e, m in ((128, 64), (768, 83))},
    **{(e, *_BASE, "ffn"): (m, "Table 4") for e, m in ((128, 38), (768, 57))},
    **{(128, 1024, layers, "all"): (18, "Table 11") for layers in (1, 3, 6, 12, 48)},
    **{(128, h, 3, "all"): (m, "Table 12") for h, m in ((2048, 60), (4096, 225), (6144, 499))},
}


def paper_figure(config: ModelConfig) -> tuple[int, str] | None:
    """The figure that the paper prints for this shape, in millions, and its table; None when it has none."""
    like_the_paper = (
        (config.vocab_size, config.max_position_embeddings, config.type_vocab_size) == (30000, 512, 2)
        and config.intermediate_size == 4 * config.hidden_size
        and (config.num_hidden_groups, config.inner_group_num) == (1, 1)
    )
    shape = (config.embedding_size, config.hidden_size, config.num_hidden_layers, config.sharing)
    return PAPER.get(shape) if like_the_paper else None


def paper_count(config: ModelConfig) -> int:
    """The count that the paper rounds: with the pooler where weights are shared, without it otherwise."""
    counts = count(config)
    return counts.without_pooler if config.sharing == "none" else counts.with_pooler


def paper_note(config: ModelConfig) -> str:
    """Why the exact count does not round to the paper's figure; empty when it does, or when there is none."""
    figure = paper_figure(config)
    if figure is None or round(paper_count(config) / 1e6) == figure[0]:
        return ""
    millions, where = figure
    exact = paper_count(config)
    # The shared rows come out right if the position table is taken as 512 x H instead of 512 x E.
    wide = exact + config.max_position_embeddings * (config.hidden_size - config.embedding_size)
    said = f"the paper says {millions}M ({where}), the exact count is {exact:,}"
    if config.sharing == "none":
        return f"{said}: rounded to tens of millions there"
    if round(wide / 1e6) == millions:
        return f"{said}: its figure fits position embeddings of width H ({wide:,})"
    return (
        f"{said}: not reproducible; with position embeddings of width H it would be {wide:,}, "
        "and Table 12 prints 225M for the same weights, so 235M looks like a misprint of that"
    )


# ---------------------------------------------------------------- by name


def resolve(name: str) -> tuple[ModelConfig, str, bool]:
    """The shape behind a preset, a recipe (path or shipped name) or a checkpoint directory, and its kind.

    Also whether the size of the vocabulary is assumed, because a recipe leaves it to the data. Raises ConfigError
    for an unknown name, an impossible shape or a fine-tuning recipe, CheckpointError for a directory without a
    usable config.json.
    """
    if name in PRESETS:
        return PRESETS[name], "preset", False
    path = Path(name)
    if path.is_dir():
        steps = sorted(path.glob("step-*/config.json"))  # a run stands for its newest step
        path = steps[-1] if steps and not (path / "config.json").exists() else path / "config.json"
    if path.name == "config.json":
        from albert_cli import store  # presets and recipes need none of its imports

        return ModelConfig.from_hf(store.read_json(path), str(path)), "checkpoint", False
    if not (name.endswith(".toml") or _is_shipped(name)):
        hint = recipes.suggestion(name, [*PRESETS, *recipes.shipped_recipes()])
        raise ConfigError(
            f"{name}: neither a preset, a recipe nor a checkpoint directory",
            hint or f"presets: {', '.join(PRESETS)}; `albert recipes list` names the recipes",
        )
    recipe = recipes.read_recipe(name)
    section = recipe.get("model")
    hint = "name a pretraining recipe, a preset or a checkpoint directory"
    if "task" in recipe:
        raise ConfigError(f"{name}: a fine-tuning recipe has no shape of its own, the checkpoint decides it", hint)
    if not isinstance(section, dict):
        raise ConfigError(f"{name}: no [model] section to count", hint)
    return ModelConfig.from_values(section, name), "recipe", "vocab_size" not in section


def _is_shipped(name: str) -> bool:
    return any(name in (full, full.rsplit("/", 1)[-1]) for full in recipes.shipped_recipes())


# ---------------------------------------------------------------- shown


def describe(names: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """Counts of the named models side by side, as data and as a table; the seven presets without names."""
    models = [_describe_one(name) for name in names or SEVEN]
    headers = ("", "embedding", "projection", "blocks", "pooler", "heads", "total", "paper's count", "paper")
    rows, notes = [], []
    for model in models:
        parts, paper = model["parts"], model["paper"]
        blocks = parts["attention"] + parts["feed_forward"]
        heads = parts["mlm_head"] + parts["sentence_order_head"]
        numbers = (parts["embeddings"], parts["projection"], blocks, parts["pooler"], heads, model["total"])
        mark = "" if not (paper and paper["note"]) else " *"
        figure = f"{paper['figure']}M{mark or '  '}" if paper else "-  "
        rows.append((model["name"], *(f"{n:,}" for n in (*numbers, model["paper_count"])), figure))
        if paper and paper["note"]:
            notes.append(f"* {model['name']}: {paper['note']}.")
        if model["vocab_size_assumed"]:
            notes.append(f"{model['name']}: names no vocabulary; counted with {model['vocab_size']:,} pieces.")
    legend = (
        "The paper's count leaves out the heads everywhere, and the pooler where nothing is shared; "
        "the total is what pretraining trains."
    )
    return {"models": models}, "\n".join([table(headers, rows), "", legend, *notes])


def _describe_one(name: str) -> dict[str, Any]:
    config, source, vocab_size_assumed = resolve(name)
    counts, figure = count(config), paper_figure(config)
    return {
        "name": name,
        "source": source,
        "vocab_size": config.vocab_size,
        "vocab_size_assumed": vocab_size_assumed,
        "config": asdict(config),
        "parts": {field.name: getattr(counts, field.name) for field in fields(counts)},
        "distinct_blocks": {
            "attention": config.num_attention_blocks,
            "feed_forward": config.num_feed_forward_blocks,
        },
        "without_pooler": counts.without_pooler,
        "with_pooler": counts.with_pooler,
        "total": counts.total,
        "paper_count": paper_count(config),
        "paper": figure and {"figure": figure[0], "table": figure[1], "note": paper_note(config)},
    }
