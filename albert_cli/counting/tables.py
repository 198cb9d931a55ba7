"""Compute and format the result of `albert params`: parameters by part, FLOPs, memory and largest batches of models.

`describe_models` counts everything (`ModelCosts`) and formats the counts. Up to four models are shown in detail, with a
column for each model. More models are summarized, with a row for each model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple

from albert_cli.console import format_markdown_table, format_table, text_width, wrap_notes
from albert_cli.counting import activations, costs, shapes
from albert_cli.counting.costs import GPU_SETUP, ParameterCounts, StateBytes, count_parameters, format_bytes
from albert_cli.counting.paper import PAPER_MODELS, ShapeCounts, count_shape, format_paper_figure
from albert_cli.counting.shapes import Shape
from albert_cli.model.config import ModelConfig

INFERENCE_BATCHES: Final = (1, 8, 32)  # sequences
MAX_DETAILED_MODELS: Final = 4
Row = tuple[str, ...]  # the cells of a table's row


class MemoryChoice(NamedTuple):
    """Bytes or a number of sequences in two cases: all activations are saved, or activation checkpointing is on."""

    saved: int
    checkpointed: int

    def to_json(self) -> dict[str, int]:
        """Return the object that `--json` prints; its key for `saved` is "kept"."""
        return {"kept": self.saved, "checkpointed": self.checkpointed}


@dataclass(frozen=True)
class FlopsPerToken:
    """FLOPs per token in sequences of the maximum length.

    With `training_with_last_layer_pruned`, the last layer is computed only at the rows that a head reads.
    """

    forward: int
    training: int
    training_with_last_layer_pruned: int


@dataclass(frozen=True)
class ModelCosts:
    """Everything that `albert params` counts of a model."""

    shape: Shape
    parts: ParameterCounts
    counts: ShapeCounts  # sums of `parts`, and the paper's figure
    parameters_applied: int  # counted as often as a forward pass uses them
    gradient_bytes_sent: Mapping[int, int]  # by number of devices
    gradient_bytes_sent_unshared: Mapping[int, int]  # the same if no two layers shared weights
    flops_per_token: FlopsPerToken
    state: StateBytes
    inference_bytes: Mapping[int, Mapping[int, int]]  # by sequence length and number of sequences
    activation_bytes: Mapping[int, MemoryChoice]  # of a sequence, by its length
    largest_batches: Mapping[int, MemoryChoice]  # by sequence length; empty without a memory size

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.shape.config

    @property
    def sequence_length(self) -> int:
        """The maximum length of a sequence in tokens."""
        return self.config.max_position_embeddings

    @property
    def unfactorized_embeddings(self) -> int:
        """Parameters of a word table V x H, which the model does not have unless E = H."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def factorized_embeddings(self) -> int | None:
        """Parameters of the word table V x E and the projection E x H; None if E = H."""
        config = self.config
        if config.embedding_size == config.hidden_size:
            return None
        return config.embedding_size * (config.vocab_size + config.hidden_size)

    @property
    def block_fraction(self) -> float:
        """The fraction of the encoder's parameters, without pooler, in its blocks."""
        return (self.parts.attention + self.parts.feed_forward) / self.parts.without_pooler

    @property
    def embedding_fraction(self) -> float:
        """The fraction of the encoder's parameters, without pooler, in its embeddings."""
        return (self.parts.embeddings + self.parts.projection) / self.parts.without_pooler

    def to_json(self) -> dict[str, object]:
        """Return the object that `--json` prints for this model."""
        config = self.config
        values: dict[str, object] = {
            "name": self.shape.name,
            "source": self.shape.source,
            "vocab_size": config.vocab_size,
            "vocab_size_assumed": self.shape.vocab_size_assumed,
            "config": asdict(config),
            "parts": asdict(self.parts),
            "distinct_blocks": {
                "attention": config.num_attention_sublayers,
                "feed_forward": config.num_feed_forward_sublayers,
            },
            "block_applications": len(config.blocks()),
            "applied": self.parameters_applied,
            "gradient_bytes_sent": self.gradient_bytes_sent,
            "gradient_bytes_sent_unshared": self.gradient_bytes_sent_unshared,
            **asdict(self.counts),
            "sequence_length": self.sequence_length,
            "flops_per_token": asdict(self.flops_per_token),
            "device": GPU_SETUP.device,
            "precision": self.shape.precision,
            "state_bytes": {**asdict(self.state), "total": self.state.total},
            "word_embeddings": {
                "unfactorized": self.unfactorized_embeddings,
                "factorized": self.factorized_embeddings,
            },
            "encoder_fractions": {"embeddings": self.embedding_fraction, "blocks": self.block_fraction},
            "inference_bytes": self.inference_bytes,
            "activation_bytes_per_sequence": {n: choice.to_json() for n, choice in self.activation_bytes.items()},
        }
        if self.largest_batches:
            values["largest_batch"] = {n: choice.to_json() for n, choice in self.largest_batches.items()}
        return values


def describe_models(
    names: Sequence[str] = (),
    memory: int | None = None,
    overrides: Sequence[str] = (),
    *,
    details: bool = False,
    as_markdown: bool = False,
) -> tuple[list[ModelCosts], str]:
    """Return the costs of models as data and as text.

    By default the models are those of the paper (`PAPER_MODELS`). `overrides` are values of `-s`, and `memory` is a
    device's memory in bytes, for the largest batches. With `details`, any number of models is shown in detail. The text
    is for a terminal, or Markdown with `as_markdown`. Raises the errors of `shapes.find_shape`.
    """
    if not names:
        names = PAPER_MODELS
    models = [count_costs(shapes.find_shape(name, overrides), memory) for name in names]
    details = details or len(models) <= MAX_DETAILED_MODELS
    if details:
        headers = ("", *(model.shape.name for model in models))
        rows = list(_detail_rows(models))
        tables = [format_markdown_table(headers, rows)] if as_markdown else list(_split_by_width(headers, rows))
    else:
        tables = _summary_tables(models, as_markdown=as_markdown)
    notes = _notes(models, memory, details=details)
    if not as_markdown:
        notes = [wrap_notes(notes)]
    return models, "\n\n".join([*tables, *notes])


def count_costs(shape: Shape, memory: int | None = None) -> ModelCosts:
    """Count everything about a model; `memory` is a device's memory in bytes, for the largest batches."""
    config = shape.config
    setup = replace(GPU_SETUP, precision=shape.precision)
    max_length = config.max_position_embeddings
    lengths = [n for n in (*costs.LENGTHS, *costs.LONG_LENGTHS) if n < max_length]
    lengths.append(max_length)
    activation_bytes: dict[int, MemoryChoice] = {}
    largest_batches: dict[int, MemoryChoice] = {}
    for length in lengths:
        activation_bytes[length] = MemoryChoice(
            saved=activations.activation_bytes(config, length, setup),
            checkpointed=activations.activation_bytes(config, length, setup, checkpointed=True),
        )
        if memory is not None:
            largest_batches[length] = MemoryChoice(
                saved=activations.largest_batch(config, length, memory, setup),
                checkpointed=activations.largest_batch(config, length, memory, setup, checkpointed=True),
            )
    unshared = costs.without_sharing(config)
    return ModelCosts(
        shape=shape,
        parts=count_parameters(config),
        counts=count_shape(config),
        # Without sharing, each use of a block has its own weights.
        parameters_applied=count_parameters(unshared).total,
        gradient_bytes_sent={n: costs.gradient_bytes(config, n) for n in costs.DEVICE_COUNTS},
        gradient_bytes_sent_unshared={n: costs.gradient_bytes(unshared, n) for n in costs.DEVICE_COUNTS},
        flops_per_token=FlopsPerToken(
            forward=round(costs.forward_flops(config, max_length)),
            training=round(costs.training_flops(config, max_length)),
            training_with_last_layer_pruned=round(costs.training_flops(config, max_length, pruned=True)),
        ),
        state=costs.state_bytes(config, setup),
        inference_bytes={
            n: {batch: activations.inference_bytes(config, n * batch) for batch in INFERENCE_BATCHES} for n in lengths
        },
        activation_bytes=activation_bytes,
        largest_batches=largest_batches,
    )


# ---------------------------------------------------------------- one row for each model


def _summary_tables(models: Sequence[ModelCosts], *, as_markdown: bool) -> list[str]:
    """Return a table with a row for each model and, if a memory size is known, a table of the largest batches."""
    format_rows = format_markdown_table if as_markdown else format_table
    headers = ("", *_summary_cells(models[0]))
    tables = [format_rows(headers, [(model.shape.name, *_summary_cells(model).values()) for model in models])]
    lengths = sorted(set().union(*(model.largest_batches for model in models)))
    if lengths:
        rows = []
        for model in models:
            cells = {n: f"{choice.saved:,}" for n, choice in model.largest_batches.items()}
            rows.append((model.shape.name, *(cells.get(n, "–") for n in lengths)))
        tables.append(format_rows(("largest batch of", *map(str, lengths)), rows))
    return tables


def _summary_cells(model: ModelCosts) -> dict[str, str]:
    """Return a model's cells as a row, by the column's heading."""
    return {
        "parameters": f"{model.counts.paper_count:,}",
        "paper": format_paper_figure(model.counts.paper),
        "length": str(model.sequence_length),
        "GFLOP/token": costs.format_three_digits(model.flops_per_token.training / 1e9),
        "state": format_bytes(model.state.total),
        "activations": format_bytes(model.activation_bytes[model.sequence_length].saved),
    }


# ---------------------------------------------------------------- one column for each model


def _detail_cells(model: ModelCosts) -> dict[str, str]:
    """Return a model's cells as a column, by the row's heading."""
    parts = model.parts
    state = model.state
    flops = model.flops_per_token
    # These sub-layers have separate weights. Attention and feed-forward can be shared independently.
    attention_sets = model.config.num_attention_sublayers
    feed_forward_sets = model.config.num_feed_forward_sublayers
    weight_sets = str(attention_sets)
    if attention_sets != feed_forward_sets:
        weight_sets = f"{attention_sets} attn, {feed_forward_sets} FFN"
    factorized = model.factorized_embeddings
    sent = model.gradient_bytes_sent
    unshared = model.gradient_bytes_sent_unshared
    return {
        "embeddings": f"{parts.embeddings:,}",
        "projection from E to H": f"{parts.projection:,}",
        "attention": f"{parts.attention:,}",
        "feed-forward": f"{parts.feed_forward:,}",
        "pooler": f"{parts.pooler:,}",
        "MLM head": f"{parts.mlm_head:,}",
        "sentence-order head": f"{parts.sentence_order_head:,}",
        "word embeddings, V x H": f"{model.unfactorized_embeddings:,}",
        "  V x E + E x H": "–" if factorized is None else f"{factorized:,}",
        "fraction of encoder: embeddings": f"{100 * model.embedding_fraction:.1f} %",
        "  blocks": f"{100 * model.block_fraction:.1f} %",
        "total, with pooler and heads": f"{model.counts.total:,}",
        "as the paper counts": f"{model.counts.paper_count:,}",
        "the paper says": format_paper_figure(model.counts.paper),
        "blocks computed": str(len(model.config.blocks())),
        "sets of block weights": weight_sets,
        "parameters applied": f"{model.parameters_applied:,}",
        "sequence length": str(model.sequence_length),
        "GFLOP per token, forward": costs.format_three_digits(flops.forward / 1e9),
        "GFLOP per token, training": costs.format_three_digits(flops.training / 1e9),
        "  last layer pruned": costs.format_three_digits(flops.training_with_last_layer_pruned / 1e9),
        "weights, fp32": format_bytes(state.weights),
        "gradients, fp32": format_bytes(state.gradients),
        "moments, fp32": format_bytes(state.moments),
        "copy of the weights, bf16": format_bytes(state.copy),
        "all of these": format_bytes(state.total),
        "gradient sent per device and step": "shared / unshared",
        **{f"  of {n} devices": f"{format_bytes(sent[n])} / {format_bytes(unshared[n])}" for n in sent},
    }


def _detail_rows(models: Sequence[ModelCosts]) -> Iterator[Row]:
    """Yield all rows of the detailed table: the heading, and a cell for each model."""
    columns = [_detail_cells(model) for model in models]
    for heading in columns[0]:
        yield (heading, *(cells[heading] for cells in columns))
    choices = "saved / recomputed"
    activation_columns = [model.activation_bytes for model in models]
    yield from _length_rows("activations of a sequence", choices, activation_columns, format_bytes)
    if models[0].largest_batches:
        yield from _length_rows("largest batch", choices, [model.largest_batches for model in models], "{:,}".format)
    batches = " / ".join(map(str, INFERENCE_BATCHES))
    inference_columns = [{n: sizes.values() for n, sizes in model.inference_bytes.items()} for model in models]
    yield from _length_rows("inference, fp32, batch of", batches, inference_columns, format_bytes)


def _length_rows(
    heading: str,
    column_heading: str,
    columns: Sequence[Mapping[int, Iterable[int]]],
    format_number: Callable[[int], str],
) -> Iterator[Row]:
    """Yield a row of headings, and a row for each sequence length; `columns` holds each model's numbers by length."""
    yield (heading, *(column_heading for _ in columns))
    for length in sorted(set().union(*columns)):
        cells = [" / ".join(map(format_number, numbers.get(length, ()))) for numbers in columns]
        yield (f"  {length} tokens", *(cell or "–" for cell in cells))


def _split_by_width(headers: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Yield tables that fit the terminal's width: each has the column of headings and as many models as fit."""
    widths = [max(len(cells[i]) for cells in (headers, *rows)) for i in range(len(headers))]
    gap = 2  # spaces between two columns
    first = 1
    while first < len(headers):
        stop = first + 1  # a table has at least one model, even if it does not fit
        width = widths[0] + gap + widths[first]
        while stop < len(headers) and width + gap + widths[stop] <= text_width():
            width += gap + widths[stop]
            stop += 1
        yield format_table(("", *headers[first:stop]), [(cells[0], *cells[first:stop]) for cells in rows])
        first = stop


# ---------------------------------------------------------------- notes


def _notes(models: Sequence[ModelCosts], memory: int | None, *, details: bool) -> list[str]:
    """Return the notes below the tables: about the paper's figures first, then about the estimates."""
    first = models[0]
    flops = first.flops_per_token
    pruned_fraction = 1 - flops.training_with_last_layer_pruned / flops.training
    notes = []
    for model in models:
        paper = model.counts.paper
        if paper is not None and paper.note:
            notes.append(f"* {model.shape.name}: {paper.note}.")
    for model in models:
        if model.shape.vocab_size_assumed:
            notes.append(
                f"{model.shape.name}: has no vocabulary size; counted with {model.config.vocab_size:,} tokens."
            )
    notes += [
        "The paper counts no heads, and the pooler only where layers share weights.",
        "Training is three forward passes per token, with the MLM head at 15 % of the positions. Computing the "
        f"last layer only where a head reads it saves {100 * pruned_fraction:.1f} % ({first.shape.name}).",
        "Activations: an estimate of what the backward pass needs of a sequence, in "
        f"{' or '.join(sorted({model.shape.precision for model in models}))} on a GPU: all saved, or "
        "recomputed from the blocks' inputs (train.checkpoint_activations). Sharing does not shrink them.",
    ]
    if details:
        notes.append("Applied: every block's weights as often as it is computed, as if no two layers shared any.")
    if memory is not None:
        notes.append(
            f"Largest batch: what fits into {100 * activations.USABLE_FRACTION:.0f} % of {format_bytes(memory)} next "
            "to weights, gradients and moments; 0 if these and the optimizer's step do not fit."
        )
    return notes
