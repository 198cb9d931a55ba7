"""Compare exact parameter counts with the paper's figures (arXiv 1909.11942), one line for every shape.

`describe_paper` returns the output of `albert params --paper`; in Markdown, this output is the page `docs/shapes.md`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from albert_cli.console import format_markdown_table, format_table, wrap_notes
from albert_cli.counting import activations, costs, shapes
from albert_cli.counting.costs import count_parameters
from albert_cli.model.config import PRESETS, ModelConfig

# The presets without those of the first release (v1), whose shapes differ from v2 in dropout only.
PAPER_MODELS: Final = tuple(name for name in PRESETS if not name.endswith("-v1"))

MEMORY: Final = 12 * 2**30  # bytes; a Titan X
# The largest batches of fine-tuning on a Titan X at `costs.LENGTHS`, from BERT's README (google-research/bert).
PUBLISHED_BATCHES: Final[dict[str, tuple[int, ...]]] = {
    "bert-base": (64, 32, 16, 14, 12, 6),
    "bert-large": (12, 6, 2, 1, 0, 0),
}

_SHARINGS: Final = ("all", "attention", "ffn", "none")
_GROUPS: Final = {
    "albert-base": (2, 3, 4, 6, 12),
    "albert-large": (2, 3, 4, 6, 8, 12, 24),
    "albert-xlarge": (2, 4, 12, 24),
    "albert-xxlarge": (2, 3, 4, 6, 12),
}
# The shapes below each heading, by the names that `albert params` accepts.
PAPER_SHAPES: Final[dict[str, tuple[str, ...]]] = {
    "Table 1, and BERT-xlarge of the paper's first version (arXiv v1)": PAPER_MODELS,
    "The first release (v1): base, large and xlarge, which had dropout": tuple(
        name for name in PRESETS if name.endswith("-v1") and PRESETS[name].hidden_dropout_prob
    ),
    "Tables 3 and 4: embedding size and sharing": tuple(
        f"albert-base:E={size},sharing={sharing}" for size in (64, 128, 256, 768) for sharing in _SHARINGS
    ),
    "Groups of layers (§4.5), and two blocks in a layer": (
        *(f"{name}:G={groups}" for name, numbers in _GROUPS.items() for groups in numbers),
        "albert-base:inner_group_num=2",
    ),
    "Table 11: depth": tuple(f"albert-large:L={layers}" for layers in (1, 3, 6, 12, 24, 48)),
    "Table 12: width": tuple(f"albert-large:L=3,H={h},A={h // 64},F={4 * h}" for h in (1024, 2048, 4096, 6144)),
    "Table 13: a deeper xxlarge": ("albert-xxlarge:L=12", "albert-xxlarge:L=24"),
}

# Hidden size and number of layers.
_BASE: Final = (768, 12)
_LARGE: Final = (1024, 24)
_XLARGE: Final = (2048, 24)
_XXLARGE: Final = (4096, 12)
# (E, H, layers, sharing): the paper's figure in millions, and its table.
PAPER_FIGURES: Final[dict[tuple[int, int, int, str], tuple[int, str]]] = {
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


@dataclass(frozen=True)
class PaperFigure:
    """The paper's figure for a shape in millions, and its table.

    `note` explains why the exact count does not round to the figure; it is empty if it does.
    """

    figure: int
    table: str
    note: str


@dataclass(frozen=True)
class ShapeCounts:
    """Parameter counts of a shape.

    `total` includes the pooler and the heads. `paper_count` is the count that the paper rounds, or would round if it
    had the shape (see the function `paper_count`). `paper` is the paper's figure, None if it has none.
    """

    without_pooler: int
    with_pooler: int
    total: int
    paper_count: int
    paper: PaperFigure | None


def find_paper_figure(config: ModelConfig) -> PaperFigure | None:
    """Return the paper's figure for a shape; None if the paper has no figure.

    A shape is looked up by E, H, layers and sharing, so its other values must be the paper's.
    """
    has_paper_values = (
        (config.vocab_size, config.max_position_embeddings, config.type_vocab_size) == (30000, 512, 2)
        and config.intermediate_size == 4 * config.hidden_size
        and (config.num_hidden_groups, config.inner_group_num) == (1, 1)
        and not (config.always_project or config.group_sizes)
    )
    shape = (config.embedding_size, config.hidden_size, config.num_hidden_layers, config.sharing)
    if not has_paper_values or shape not in PAPER_FIGURES:
        return None
    millions, table = PAPER_FIGURES[shape]
    return PaperFigure(millions, table, _explain_difference(config, millions, table))


def paper_count(config: ModelConfig) -> int:
    """Return the count that the paper rounds: with the pooler unless `sharing` is "none", whatever the groups are."""
    counts = count_parameters(config)
    if config.sharing == "none":
        return counts.without_pooler
    return counts.with_pooler


def _explain_difference(config: ModelConfig, millions: int, table: str) -> str:
    """Explain why the exact count does not round to the paper's figure in millions; return "" if it does."""
    exact = paper_count(config)
    if round(exact / 1e6) == millions:
        return ""
    # With position embeddings [512, H] instead of [512, E], most counts with sharing round to the paper's figures.
    with_wide_positions = exact + config.max_position_embeddings * (config.hidden_size - config.embedding_size)
    facts = f"the paper says {millions}M ({table}), the exact count is {exact:,}"
    if config.sharing == "none":
        return f"{facts}: the paper rounds to tens of millions"
    if round(with_wide_positions / 1e6) == millions:
        return f"{facts}: the figure matches position embeddings of width H ({with_wide_positions:,})"
    return (
        f"{facts}: not reproducible; position embeddings of width H would give {with_wide_positions:,}. "
        "Table 12 prints 225M for the same weights, so 235M is probably a misprint"
    )


_BATCH_NOTES: Final = (
    "The published sizes are from BERT's README, for fine-tuning with Adam in fp32 on a Titan X.",
    "The sizes by arithmetic are for pretraining with LAMB in fp32 or bf16, with all activations saved and nothing "
    "compiled.",
    "`python -m benchmarks.gpu --out speeds --part batches` finds the largest batches that really fit into "
    "12 GB of a GPU.",
    "In fp32 the arithmetic gives 3 to 11 times the published sizes that are not 0; the difference is unexplained.",
    "Sharing weights makes only the state smaller, that is weights, gradients and moments; activations take the same "
    "memory as without sharing.",
)
_HEADERS: Final = ("shape", "without pooler", "with pooler", "with heads", "the paper", "source")
_INTRODUCTION: Final = """# Every shape of the paper

`albert params --paper --markdown` prints this page: exact parameter counts next to the paper's figures.
A shape is a preset such as `albert-base`, or a preset with changed values such as `albert-base:E=64,sharing=none`.
E is the embedding size, H the hidden size, L the number of layers, and A the number of attention heads.
F is the width of the feed-forward part.
G is the number of layer groups; the layers of a group share weights, so with G = L no two layers do.
In a recipe, `-s model.embedding_size=64 -s model.sharing=none` makes the same changes.

The paper leaves out the heads, and counts the pooler only where layers share weights.
If the paper has a figure for a shape, the count that it rounds is **bold**.
A star marks a figure of the paper that differs from the rounded count; the last section explains the difference.
A dash means that the paper has no figure.
The source is the first table of the paper that has the shape.
An ALBERT preset includes the dropout of the released model: 0.1 in v1, and none in v2.
A preset without a version, such as `albert-base`, is v2.
`albert-xxlarge-v1` is an exception: it has no dropout either, and therefore equals `albert-xxlarge`."""


def describe_paper(*, as_markdown: bool = False) -> tuple[dict[str, object], str]:
    """Return the counts of all shapes of the paper as data for `--json` and as text.

    With `as_markdown` the text is the page `docs/shapes.md`, otherwise it is for a terminal.
    """
    counts = {name: count_shape(shapes.find_shape(name).config) for names in PAPER_SHAPES.values() for name in names}
    batches = _largest_batches()
    data = [
        {"shape": name, "section": heading, **asdict(counts[name])}
        for heading, names in PAPER_SHAPES.items()
        for name in names
    ]
    batch_data = [{"shape": row.model, "how": row.source, "largest": list(row.sizes)} for row in batches]

    format_rows = format_markdown_table if as_markdown else format_table
    heading_prefix = "## " if as_markdown else ""
    parts = [_INTRODUCTION] if as_markdown else []
    for heading, names in PAPER_SHAPES.items():
        rows = [_shape_row(name, counts[name], as_markdown=as_markdown) for name in names]
        parts += [f"{heading_prefix}{heading}", format_rows(_HEADERS, rows)]
    batch_heading = "The largest batch that 12 GB hold"
    if as_markdown:
        parts.append("\n".join([f"## {batch_heading}\n", *_BATCH_NOTES]))
    else:
        parts.append(f"{batch_heading}\n{wrap_notes(_BATCH_NOTES)}")
    headers = ("model", "", *(f"{length} tokens" for length in costs.LENGTHS))
    parts.append(format_rows(headers, [(row.model, row.source, *map(str, row.sizes)) for row in batches]))
    notes: dict[str, str] = {}  # the text of each note, and the first shape that has it
    for name, shape_counts in counts.items():
        if shape_counts.paper is not None and shape_counts.paper.note:
            notes.setdefault(shape_counts.paper.note, name)
    note_lines = [f"* {name}: {note}." for note, name in notes.items()]
    if as_markdown:
        parts += ["## Figures that differ from the rounded count", "\n".join(note_lines)]
    else:
        parts.append(wrap_notes(note_lines))
    return {"shapes": data, "largest_batch_at_12_gb": batch_data}, "\n\n".join(parts)


def _shape_row(name: str, counts: ShapeCounts, *, as_markdown: bool) -> tuple[str, ...]:
    """Return a shape's cells under `_HEADERS`; in Markdown, the count that the paper rounds to its figure is bold."""
    numbers = [f"{number:,}" for number in (counts.without_pooler, counts.with_pooler, counts.total)]
    if as_markdown:
        name = f"`{name}`"
        if counts.paper is not None:
            rounded = f"{counts.paper_count:,}"
            numbers = [f"**{number}**" if number == rounded else number for number in numbers]
    source = "" if counts.paper is None else counts.paper.table
    return (name, *numbers, format_paper_figure(counts.paper), source)


@dataclass(frozen=True)
class _BatchRow:
    """The largest batches of a model at `costs.LENGTHS`; `source` is "published" or "by arithmetic, PRECISION"."""

    model: str
    source: str
    sizes: tuple[int, ...]


def _largest_batches() -> list[_BatchRow]:
    """Return the published and the computed largest batches for `MEMORY`, in the order of the presets."""
    rows = [_BatchRow(name, "published", sizes) for name, sizes in PUBLISHED_BATCHES.items()]
    for name in ("bert-base", "bert-large", "albert-base", "albert-large"):
        for precision in costs.PRECISIONS:
            setup = costs.ComputeSetup("cuda", precision, compiled=False)  # like `benchmarks.gpu`
            sizes = tuple(activations.largest_batch(PRESETS[name], length, MEMORY, setup) for length in costs.LENGTHS)
            rows.append(_BatchRow(name, f"by arithmetic, {precision}", sizes))
    return sorted(rows, key=lambda row: list(PRESETS).index(row.model))


def count_shape(config: ModelConfig) -> ShapeCounts:
    """Return the counts of a shape and the paper's figure."""
    counts = count_parameters(config)
    return ShapeCounts(
        without_pooler=counts.without_pooler,
        with_pooler=counts.with_pooler,
        total=counts.total,
        paper_count=paper_count(config),
        paper=find_paper_figure(config),
    )


def format_paper_figure(paper: PaperFigure | None) -> str:
    """Format the paper's figure, with a star if the exact count does not round to it, and a dash without a figure.

    A space replaces a missing star and aligns the figures of a column.
    """
    if paper is None:
        return "– "
    star = "*" if paper.note else " "
    return f"{paper.figure}M{star}"
