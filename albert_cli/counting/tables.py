"""The tables of `albert params`: parameters by part, computation, memory and the largest batch, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from albert_cli.console import format_markdown_table, format_table, text_width, wrap_notes
from albert_cli.counting import activations, costs, shapes
from albert_cli.counting.costs import GPU_SETUP, ParameterCounts, StateBytes, count_parameters, format_bytes
from albert_cli.counting.paper import PAPER_MODELS, ShapeCounts, count_shape, format_paper_figure
from albert_cli.counting.shapes import Shape
from albert_cli.model.config import ModelConfig

INFERENCE_BATCHES: Final = (1, 8, 32)
MAX_DETAILED_MODELS: Final = 4  # more models are shown in one line each
Line = tuple[str, ...]


@dataclass(frozen=True)
class MemoryChoice:
    """A number with all activations saved, and with activation checkpointing."""

    saved: int
    checkpointed: int

    def to_json(self) -> dict[str, int]:
        """Return what `--json` prints."""
        return {"kept": self.saved, "checkpointed": self.checkpointed}


@dataclass(frozen=True)
class FlopsPerToken:
    """FLOPs of a token; `training_with_last_layer_pruned` computes the last layer only where a head reads it."""

    forward: int
    training: int
    training_with_last_layer_pruned: int


@dataclass(frozen=True)
class ModelCosts:
    """Everything that `albert params` counts of a model, with numbers by sequence length.

    `applied`: parameters, counted as often as they are used. `gradient_bytes_sent`: by number of devices.
    `factorized_embeddings` is None if E equals H, `largest_batches` without a memory size.
    """

    shape: Shape
    parts: ParameterCounts
    counts: ShapeCounts
    applied: int
    gradient_bytes_sent: Mapping[int, int]
    gradient_bytes_sent_unshared: Mapping[int, int]
    flops_per_token: FlopsPerToken
    state: StateBytes
    inference_bytes: Mapping[int, Mapping[int, int]]
    activation_bytes: Mapping[int, MemoryChoice]
    largest_batches: Mapping[int, MemoryChoice] | None

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.shape.config

    @property
    def sequence_length(self) -> int:
        """The maximum length."""
        return self.config.max_position_embeddings

    @property
    def unfactorized_embeddings(self) -> int:
        """Parameters of word embeddings V x H."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def factorized_embeddings(self) -> int | None:
        """Parameters of V x E + E x H; None if E equals H."""
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
        """Return what `--json` prints."""
        config = self.config
        values: dict[str, object] = {
            "name": self.shape.name,
            "source": self.shape.source,
            "vocab_size": config.vocab_size,
            "vocab_size_assumed": self.shape.vocab_size_assumed,
            "config": asdict(config),
            "parts": asdict(self.parts),
            "distinct_blocks": {
                "attention": config.num_attention_blocks,
                "feed_forward": config.num_feed_forward_blocks,
            },
            "block_applications": len(config.blocks()),
            "applied": self.applied,
            "gradient_bytes_sent": self.gradient_bytes_sent,
            "gradient_bytes_sent_unshared": self.gradient_bytes_sent_unshared,
            **asdict(self.counts),
            "sequence_length": self.sequence_length,
            "flops_per_token": asdict(self.flops_per_token),
            "device": GPU_SETUP.device,
            "precision": GPU_SETUP.precision,
            "state_bytes": {**asdict(self.state), "total": self.state.total},
            "word_embeddings": {
                "unfactorized": self.unfactorized_embeddings,
                "factorized": self.factorized_embeddings,
            },
            "encoder_fractions": {"embeddings": self.embedding_fraction, "blocks": self.block_fraction},
            "inference_bytes": self.inference_bytes,
            "activation_bytes_per_sequence": {n: choice.to_json() for n, choice in self.activation_bytes.items()},
        }
        if self.largest_batches is not None:
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
    """Return the named models (by default the paper's seven) as data and as text; raise as `shapes.find_shape`."""
    models = [count_costs(shapes.find_shape(name, overrides), memory) for name in names or PAPER_MODELS]
    details = details or len(models) <= MAX_DETAILED_MODELS
    if details:
        headers = ("", *(model.shape.name for model in models))
        lines = list(_lines(models))
        tables = [format_markdown_table(headers, lines)] if as_markdown else list(_side_by_side(headers, lines))
    else:
        show = format_markdown_table if as_markdown else format_table
        headers = ("", *_in_short(models[0]))
        tables = [show(headers, [(model.shape.name, *_in_short(model).values()) for model in models])]
        if memory is not None:
            batches = [model.largest_batches or {} for model in models]
            lengths = sorted(set().union(*batches))
            rows = [
                (model.shape.name, *(f"{sizes[n].saved:,}" if n in sizes else "–" for n in lengths))
                for model, sizes in zip(models, batches, strict=True)
            ]
            tables.append(show(("largest batch of", *map(str, lengths)), rows))
    notes = _notes(models, memory, details=details)
    return models, "\n\n".join([*tables, *(notes if as_markdown else [wrap_notes(notes)])])


def count_costs(shape: Shape, memory: int | None = None) -> ModelCosts:
    """Count all numbers of a model, with the largest batches for `memory` bytes."""
    config = shape.config
    length = config.max_position_embeddings
    lengths = sorted({length, *(n for n in (*costs.LENGTHS, *costs.LONG_LENGTHS) if n <= length)})

    def by_length(number: Callable[[int, bool], int]) -> dict[int, MemoryChoice]:
        return {n: MemoryChoice(saved=number(n, False), checkpointed=number(n, True)) for n in lengths}

    unshared = costs.without_sharing(config)
    return ModelCosts(
        shape=shape,
        parts=count_parameters(config),
        counts=count_shape(config),
        applied=costs.applied_parameters(config),
        gradient_bytes_sent={n: costs.gradient_bytes(config, n) for n in costs.DEVICES},
        gradient_bytes_sent_unshared={n: costs.gradient_bytes(unshared, n) for n in costs.DEVICES},
        flops_per_token=FlopsPerToken(
            forward=round(costs.forward_flops(config, length)),
            training=round(costs.training_flops(config, length)),
            training_with_last_layer_pruned=round(costs.training_flops(config, length, pruned=True)),
        ),
        state=costs.state_bytes(config, GPU_SETUP),
        inference_bytes={
            n: {batch: activations.inference_bytes(config, n * batch) for batch in INFERENCE_BATCHES} for n in lengths
        },
        activation_bytes=by_length(
            lambda n, again: activations.activation_bytes(config, n, GPU_SETUP, checkpointed=again)
        ),
        largest_batches=None
        if memory is None
        else by_length(lambda n, again: activations.largest_batch(config, n, memory, GPU_SETUP, checkpointed=again)),
    )


def _in_short(model: ModelCosts) -> dict[str, str]:
    """Return a model's cells as a row, by the column's heading."""
    return {
        "paper's count": f"{model.counts.paper_count:,}",
        "paper": format_paper_figure(model.counts.paper),
        "length": str(model.sequence_length),
        "GFLOP/token": costs.format_three_digits(model.flops_per_token.training / 1e9),
        "state": format_bytes(model.state.total),
        "activations": format_bytes(model.activation_bytes[model.sequence_length].saved),
    }


def _in_detail(model: ModelCosts) -> dict[str, str]:
    """Return a model's cells as a column, by the row's heading."""
    parts = model.parts
    state = model.state
    flops = model.flops_per_token
    attention = model.config.num_attention_blocks
    feed_forward = model.config.num_feed_forward_blocks
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
        "of the encoder: embeddings": f"{100 * model.embedding_fraction:.1f} %",
        "  blocks": f"{100 * model.block_fraction:.1f} %",
        "all that pretraining trains": f"{model.counts.total:,}",
        "as the paper counts": f"{model.counts.paper_count:,}",
        "the paper says": format_paper_figure(model.counts.paper),
        "blocks computed": str(len(model.config.blocks())),
        "sets of block weights": f"{attention}"
        if attention == feed_forward
        else f"{attention} attn, {feed_forward} FFN",
        "parameters applied": f"{model.applied:,}",
        "sequence length": str(model.sequence_length),
        "GFLOP per token, forward": costs.format_three_digits(flops.forward / 1e9),
        "GFLOP per token, training": costs.format_three_digits(flops.training / 1e9),
        "  last layer pruned": costs.format_three_digits(flops.training_with_last_layer_pruned / 1e9),
        "weights, fp32": format_bytes(state.weights),
        "gradients, fp32": format_bytes(state.gradients),
        "LAMB's moments, fp32": format_bytes(state.moments),
        "copy of the weights, bf16": format_bytes(state.copy),
        "all of these": format_bytes(state.total),
        "gradient sent per device and step": "shared / unshared",
        **{f"  of {n} devices": f"{format_bytes(sent[n])} / {format_bytes(unshared[n])}" for n in sent},
    }


def _lines(models: Sequence[ModelCosts]) -> Iterator[Line]:
    """Yield one row for each fact; by length with all activations saved, and with activation checkpointing."""
    details = list(map(_in_detail, models))
    yield from ((label, *(cells[label] for cells in details)) for label in details[0])
    yield from _memory_lines("activations of a sequence", [model.activation_bytes for model in models], format_bytes)
    batches = [model.largest_batches for model in models if model.largest_batches is not None]
    if batches:
        yield from _memory_lines("largest batch", batches, "{:,}".format)
    yield ("inference, fp32, batch of", *(" / ".join(map(str, INFERENCE_BATCHES)) for _ in models))
    for length in sorted(set().union(*(model.inference_bytes for model in models))):
        sizes = [model.inference_bytes.get(length) for model in models]
        yield (f"  {length} tokens", *("–" if s is None else " / ".join(map(format_bytes, s.values())) for s in sizes))


def _memory_lines(
    label: str, choices: Sequence[Mapping[int, MemoryChoice]], form: Callable[[int], str]
) -> Iterator[Line]:
    """Yield a heading and a row for each length; `choices` are by model and length."""
    yield (label, *("kept / recomputed" for _ in choices))
    for length in sorted(set().union(*choices)):
        row = [by_length.get(length) for by_length in choices]
        yield (f"  {length} tokens", *("–" if c is None else f"{form(c.saved)} / {form(c.checkpointed)}" for c in row))


def _side_by_side(headers: Line, lines: Sequence[Line]) -> Iterator[str]:
    """Yield as many tables as the terminal's width requires, each with the first column."""
    widths = [max(len(cells[i]) for cells in (headers, *lines)) for i in range(len(headers))]
    first = 1
    while first < len(headers):
        stop = first + 1
        while stop < len(headers) and widths[0] + sum(2 + w for w in widths[first : stop + 1]) <= text_width():
            stop += 1
        yield format_table(("", *headers[first:stop]), [(cells[0], *cells[first:stop]) for cells in lines])
        first = stop


def _notes(models: Sequence[ModelCosts], memory: int | None, *, details: bool) -> list[str]:
    """Return the notes below the tables: on the paper's figures first, then on the estimates."""
    first = models[0]
    flops = first.flops_per_token
    saved = 1 - flops.training_with_last_layer_pruned / flops.training
    papers = [(model.shape.name, model.counts.paper) for model in models]
    notes = [f"* {name}: {paper.note}." for name, paper in papers if paper is not None and paper.note]
    notes += [
        f"{model.shape.name}: has no vocabulary size; counted with {model.config.vocab_size:,} tokens."
        for model in models
        if model.shape.vocab_size_assumed
    ]
    notes += [
        "The paper counts no heads, and the pooler only where layers share weights.",
        "Training is three forward passes per token, with the MLM head at 15 % of the positions. Computing the "
        f"last layer only where a head reads it saves {100 * saved:.1f} % ({first.shape.name}).",
        "Activations: an estimate of what the backward pass needs of a sequence, in bf16 on a GPU: all kept, or "
        "recomputed from the blocks' inputs (train.checkpoint_activations). Sharing does not shrink them.",
    ]
    if details:
        notes.append("Applied: every block's weights as often as it is computed, as if no two layers shared any.")
    if memory is not None:
        notes.append(
            f"Largest batch: what fits into {100 * activations.USABLE_FRACTION:.0f} % of {format_bytes(memory)} next "
            "to weights, gradients and moments; 0 if these and LAMB's step do not fit."
        )
    return notes
