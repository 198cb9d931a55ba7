"""The tables of `albert params`: parameters by part, computation, memory and the largest batch, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from albert_cli.console import format_markdown_table, format_table, text_width, wrap_notes
from albert_cli.counting import activations, costs, shapes
from albert_cli.counting.costs import GPU, count_parameters, format_bytes
from albert_cli.counting.paper import PAPER_MODELS, counts_and_paper_figure, format_paper_figure
from albert_cli.counting.shapes import Shape
from albert_cli.model.config import ModelConfig

INFERENCE_BATCHES: Final = (1, 8, 32)
MAX_DETAILED_MODELS: Final = 4  # more models are shown in one line each
Facts = dict[str, Any]
Line = tuple[str, ...]


def describe_models(
    names: Sequence[str] = (),
    memory: int | None = None,
    overrides: Sequence[str] = (),
    *,
    details: bool = False,
    as_markdown: bool = False,
) -> tuple[Facts, str]:
    """Return the named models (by default the paper's seven) as data and as text; raise as `shapes.find_shape`."""
    models = [_facts(shapes.find_shape(name, overrides), memory) for name in names or PAPER_MODELS]
    details = details or len(models) <= MAX_DETAILED_MODELS
    if details:
        headers = ("", *(model["name"] for model in models))
        lines = list(_lines(models))
        tables = [format_markdown_table(headers, lines)] if as_markdown else list(_side_by_side(headers, lines))
    else:
        show = format_markdown_table if as_markdown else format_table
        headers = ("", *_in_short(models[0]))
        tables = [show(headers, [(model["name"], *_in_short(model).values()) for model in models])]
        if "largest_batch" in models[0]:
            lengths = _lengths(models, "largest_batch")
            rows = []
            for model in models:
                batches = [model["largest_batch"].get(n) for n in lengths]
                rows.append((model["name"], *("–" if b is None else f"{b['kept']:,}" for b in batches)))
            tables.append(show(("largest batch of", *lengths), rows))
    notes = _notes(models, memory, details=details)
    return {"models": models}, "\n\n".join([*tables, *(notes if as_markdown else [wrap_notes(notes)])])


def _facts(shape: Shape, memory: int | None) -> Facts:
    """Return all numbers of a model."""
    config = shape.config
    counts = count_parameters(config)
    length = config.max_position_embeddings
    state = costs.state_bytes(config, GPU)
    lengths = sorted({length, *(n for n in (*costs.LENGTHS, *costs.LONG_LENGTHS) if n <= length)})

    def by_length(number: Callable[[int, bool], int]) -> dict[str, dict[str, int]]:
        return {str(n): {"kept": number(n, False), "checkpointed": number(n, True)} for n in lengths}

    facts = {
        "name": shape.name,
        "source": shape.source,
        "vocab_size": config.vocab_size,
        "vocab_size_assumed": shape.vocab_size_assumed,
        "config": asdict(config),
        "parts": {field.name: getattr(counts, field.name) for field in fields(counts)},
        "distinct_blocks": {"attention": config.num_attention_blocks, "feed_forward": config.num_feed_forward_blocks},
        "block_applications": len(config.blocks()),
        "applied": costs.applied_parameters(config),
        "gradient_bytes_sent": {str(n): costs.gradient_bytes(config, n) for n in costs.DEVICES},
        "gradient_bytes_sent_unshared": {
            str(n): costs.gradient_bytes(costs.without_sharing(config), n) for n in costs.DEVICES
        },
        **counts_and_paper_figure(config),
        "sequence_length": length,
        "flops_per_token": {
            "forward": round(costs.forward_flops(config, length)),
            "training": round(costs.training_flops(config, length)),
            "training_with_last_layer_pruned": round(costs.training_flops(config, length, pruned=True)),
        },
        "device": GPU.device,
        "precision": GPU.precision,
        "state_bytes": {**asdict(state), "total": state.total},
        "word_embeddings": {
            "unfactorized": config.vocab_size * config.hidden_size,
            "factorized": _factorized_embeddings(config),
        },
        "encoder_fractions": _encoder_fractions(counts),
        "inference_bytes": {
            str(n): {str(batch): activations.inference_bytes(config, n * batch) for batch in INFERENCE_BATCHES}
            for n in lengths
        },
        "activation_bytes_per_sequence": by_length(
            lambda n, again: activations.activation_bytes(config, n, GPU, checkpointed=again)
        ),
    }
    if memory is not None:
        facts["largest_batch"] = by_length(
            lambda n, again: activations.largest_batch(config, n, memory, GPU, checkpointed=again)
        )
    return facts


def _factorized_embeddings(config: ModelConfig) -> int | None:
    """Return the parameters of V x E + E x H; None if E equals H."""
    if config.embedding_size == config.hidden_size:
        return None
    return config.embedding_size * (config.vocab_size + config.hidden_size)


def _encoder_fractions(counts: costs.ParameterCounts) -> dict[str, float]:
    """Return the fractions of the encoder's parameters, without pooler, in its embeddings and in its blocks."""
    blocks = counts.attention + counts.feed_forward
    embeddings = counts.without_pooler - blocks
    return {"embeddings": embeddings / counts.without_pooler, "blocks": blocks / counts.without_pooler}


def _in_short(model: Facts) -> dict[str, str]:
    """Return a model's cells as a row, by the column's heading."""
    saved = model["activation_bytes_per_sequence"][str(model["sequence_length"])]["kept"]
    return {
        "paper's count": f"{model['paper_count']:,}",
        "paper": format_paper_figure(model["paper"]),
        "length": str(model["sequence_length"]),
        "GFLOP/token": costs.format_three_digits(model["flops_per_token"]["training"] / 1e9),
        "state": format_bytes(model["state_bytes"]["total"]),
        "activations": format_bytes(saved),
    }


def _in_detail(model: Facts) -> dict[str, str]:
    """Return a model's cells as a column, by the row's heading."""
    parts = model["parts"]
    state = {name: format_bytes(size) for name, size in model["state_bytes"].items()}
    flops = {name: costs.format_three_digits(number / 1e9) for name, number in model["flops_per_token"].items()}
    sent = model["gradient_bytes_sent"]
    unshared = model["gradient_bytes_sent_unshared"]
    attention, feed_forward = model["distinct_blocks"].values()
    words = model["word_embeddings"]
    fractions = model["encoder_fractions"]
    return {
        "embeddings": f"{parts['embeddings']:,}",
        "projection from E to H": f"{parts['projection']:,}",
        "attention": f"{parts['attention']:,}",
        "feed-forward": f"{parts['feed_forward']:,}",
        "pooler": f"{parts['pooler']:,}",
        "MLM head": f"{parts['mlm_head']:,}",
        "sentence-order head": f"{parts['sentence_order_head']:,}",
        "word embeddings, V x H": f"{words['unfactorized']:,}",
        "  V x E + E x H": "–" if words["factorized"] is None else f"{words['factorized']:,}",
        "of the encoder: embeddings": f"{100 * fractions['embeddings']:.1f} %",
        "  blocks": f"{100 * fractions['blocks']:.1f} %",
        "all that pretraining trains": f"{model['total']:,}",
        "as the paper counts": f"{model['paper_count']:,}",
        "the paper says": format_paper_figure(model["paper"]),
        "blocks computed": str(model["block_applications"]),
        "sets of block weights": f"{attention}"
        if attention == feed_forward
        else f"{attention} attn, {feed_forward} FFN",
        "parameters applied": f"{model['applied']:,}",
        "sequence length": str(model["sequence_length"]),
        "GFLOP a token, forward": flops["forward"],
        "GFLOP a token, training": flops["training"],
        "  last layer pruned": flops["training_with_last_layer_pruned"],
        "weights, fp32": state["weights"],
        "gradients, fp32": state["gradients"],
        "LAMB's moments, fp32": state["moments"],
        "copy of the weights, bf16": state["copy"],
        "all of these": state["total"],
        "gradient a device sends a step": "shared / unshared",
        **{f"  of {n} devices": f"{format_bytes(sent[n])} / {format_bytes(unshared[n])}" for n in sent},
    }


def _lines(models: Sequence[Facts]) -> Iterator[Line]:
    """Yield one row for each fact; by length with all activations saved, and with activation checkpointing."""
    details = list(map(_in_detail, models))
    yield from ((label, *(cells[label] for cells in details)) for label in details[0])
    for key, label, words in (
        ("activation_bytes_per_sequence", "activations of a sequence", format_bytes),
        ("largest_batch", "largest batch", "{:,}".format),
    ):
        if key in models[0]:
            yield (label, *("kept / recomputed" for _ in models))
            for length in _lengths(models, key):
                both = [model[key].get(length) for model in models]
                cells = ["–" if b is None else f"{words(b['kept'])} / {words(b['checkpointed'])}" for b in both]
                yield (f"  {length} tokens", *cells)
    yield ("inference, fp32, batch of", *(" / ".join(map(str, INFERENCE_BATCHES)) for _ in models))
    for length in _lengths(models, "inference_bytes"):
        sizes = [model["inference_bytes"].get(length) for model in models]
        yield (f"  {length} tokens", *("–" if s is None else " / ".join(map(format_bytes, s.values())) for s in sizes))


def _lengths(models: Sequence[Facts], key: str) -> list[str]:
    return sorted({n for model in models for n in model[key]}, key=int)


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


def _notes(models: Sequence[Facts], memory: int | None, *, details: bool) -> list[str]:
    """Return the notes below the tables: on the paper's figures first, then on the estimates."""
    first = models[0]
    flops = first["flops_per_token"]
    saved = 1 - flops["training_with_last_layer_pruned"] / flops["training"]
    notes = [f"* {m['name']}: {m['paper']['note']}." for m in models if m["paper"] and m["paper"]["note"]]
    notes += [
        f"{m['name']}: has no vocabulary size; counted with {m['vocab_size']:,} tokens."
        for m in models
        if m["vocab_size_assumed"]
    ]
    notes += [
        "The paper counts no heads, and the pooler only where layers share weights.",
        "Training is three forward passes a token, with the MLM head at 15 % of the positions. Computing the "
        f"last layer only where a head reads it saves {100 * saved:.1f} % ({first['name']}).",
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
