"""What `albert params` prints: models side by side, parameters by part, computation, memory, the batch that fits.

Up to four models stand beside each other in full; more of them are a line each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from albert_cli.console import columns, markdown, table, wrapped
from albert_cli.errors import ConfigError
from albert_cli.model import costs, shapes
from albert_cli.model.costs import Setup, size_in_words
from albert_cli.model.paper import SEVEN, as_data
from albert_cli.model.params import count
from albert_cli.model.shapes import Shape

IN_FULL: Final = 4  # models that are shown by part without being asked
Facts = dict[str, Any]
Line = tuple[str, ...]


@dataclass(frozen=True)
class Question:
    """What is asked of every model beside its parameters; without a length, the longest sequence up to 512."""

    sequence_length: int | None = None
    memory: int | None = None
    setup: Setup = costs.GPU

    def length(self, shape: Shape) -> int:
        """The sequence length at which a model's FLOPs are counted; raises ConfigError beyond its positions."""
        positions = shape.config.max_position_embeddings
        if self.sequence_length is None:
            return min(512, positions)
        if self.sequence_length < 2:
            raise ConfigError(f"--sequence-length {self.sequence_length}: too short", f"choose from 2 to {positions}")
        if self.sequence_length > positions:
            raise ConfigError(
                f"--sequence-length {self.sequence_length}: {shape.name} has {positions} positions",
                f"choose from 2 to {positions}, or add -s model.max_position_embeddings={self.sequence_length}",
            )
        return self.sequence_length

    def lengths(self, shape: Shape) -> list[int]:
        """The sequence lengths at which a model's memory is estimated."""
        usual = (n for n in costs.LENGTHS if n <= shape.config.max_position_embeddings)
        return sorted({*usual, self.length(shape)})


NOTHING_MORE: Final = Question()


def describe(
    names: Sequence[str] = (),
    question: Question = NOTHING_MORE,
    overrides: Sequence[str] = (),
    *,
    details: bool = False,
    as_markdown: bool = False,
) -> tuple[Facts, str]:
    """The named models (the paper's seven without names) as data and as text; raises as `shapes.find` does."""
    models = [_facts(shapes.find(name, overrides), question) for name in names or SEVEN]
    in_full = details or len(models) <= IN_FULL
    text = (_in_full if in_full else _in_lines)(models, as_markdown)
    notes = _notes(models, question)
    return {"models": models}, "\n\n".join([text, *notes] if as_markdown else [text, wrapped(notes)])


# ---------------------------------------------------------------- the facts of one model


def _facts(shape: Shape, question: Question) -> Facts:
    config, setup = shape.config, question.setup
    counts, length = count(config), question.length(shape)
    state = costs.state_bytes(config, setup)
    facts = {
        "name": shape.name,
        "source": shape.source,
        "vocab_size": config.vocab_size,
        "vocab_size_assumed": shape.vocab_size_assumed,
        "config": asdict(config),
        "parts": {field.name: getattr(counts, field.name) for field in fields(counts)},
        "distinct_blocks": {"attention": config.num_attention_blocks, "feed_forward": config.num_feed_forward_blocks},
        "block_applications": len(config.blocks()),
        **as_data(config),
        "sequence_length": length,
        "flops_per_token": {
            "forward": round(costs.forward_flops(config, length)),
            "training": round(costs.training_flops(config, length)),
            "training_with_last_layer_pruned": round(costs.training_flops(config, length, pruned=True)),
        },
        "device": setup.device,
        "precision": setup.precision,
        "state_bytes": {**asdict(state), "total": state.total},
        "activation_bytes_per_sequence": {
            str(n): {
                "kept": costs.activation_bytes(config, n, setup),
                "checkpointed": costs.activation_bytes(config, n, setup, checkpointed=True),
            }
            for n in question.lengths(shape)
        },
    }
    if question.memory is not None:
        facts["largest_batch"] = {
            str(n): {
                "kept": costs.largest_batch(config, n, question.memory, setup),
                "checkpointed": costs.largest_batch(config, n, question.memory, setup, checkpointed=True),
            }
            for n in question.lengths(shape)
        }
    return facts


# ---------------------------------------------------------------- a column a model


_PARTS: Final = {
    "embeddings": "embeddings",
    "projection": "projection from E to H",
    "attention": "attention",
    "feed_forward": "feed-forward",
    "pooler": "pooler",
    "mlm_head": "masked-word head",
    "sentence_order_head": "sentence-order head",
}
_FLOPS: Final = {
    "forward": "GFLOP a token, forward",
    "training": "GFLOP a token, training",
    "training_with_last_layer_pruned": "  last layer pruned",
}
_STATE: Final = {
    "weights": "weights, fp32",
    "gradients": "gradients, fp32",
    "moments": "LAMB's moments, fp32",
    "copy": "copy of the weights, bf16",
    "total": "all of these",
}


def _in_full(models: Sequence[Facts], as_markdown: bool) -> str:
    """Every fact a line, a column a model; as many tables as the width asks for."""
    headers = ("", *(model["name"] for model in models))
    lines = [*_parameters(models), *_computation(models), *_memory(models)]
    if as_markdown:
        return markdown(headers, lines)
    widths = [max(len(cells[i]) for cells in (headers, *lines)) for i in range(len(headers))]
    tables, first = [], 1
    while first < len(headers):
        stop = first + 1
        while stop < len(headers) and widths[0] + sum(2 + w for w in widths[first : stop + 1]) <= columns():
            stop += 1
        tables.append(table(("", *headers[first:stop]), [(cells[0], *cells[first:stop]) for cells in lines]))
        first = stop
    return "\n\n".join(tables)


def _line(label: str, models: Sequence[Facts], value: Callable[[Facts], str]) -> Line:
    return (label, *(value(model) for model in models))


def _parameters(models: Sequence[Facts]) -> Iterator[Line]:
    for part, label in _PARTS.items():
        yield _line(label, models, lambda m, part=part: f"{m['parts'][part]:,}")  # type: ignore[misc]
    yield _line("all that pretraining trains", models, lambda m: f"{m['total']:,}")
    yield _line("as the paper counts", models, lambda m: f"{m['paper_count']:,}")
    yield _line("the paper says", models, _figure)
    yield _line("blocks computed", models, lambda m: str(m["block_applications"]))
    yield _line("sets of block weights", models, _distinct)


def _figure(model: Facts) -> str:
    paper = model["paper"]
    return f"{paper['figure']}M{'*' if paper['note'] else ' '}" if paper else "– "


def _distinct(model: Facts) -> str:
    attention, feed_forward = model["distinct_blocks"].values()
    return str(attention) if attention == feed_forward else f"{attention} attn, {feed_forward} FFN"


def _computation(models: Sequence[Facts]) -> Iterator[Line]:
    yield _line("sequence length", models, lambda m: str(m["sequence_length"]))
    for key, label in _FLOPS.items():
        yield _line(label, models, lambda m, key=key: _giga(m["flops_per_token"][key]))  # type: ignore[misc]


def _giga(flops: float) -> str:
    return costs.three_digits(flops / 1e9)


def _memory(models: Sequence[Facts]) -> Iterator[Line]:
    for key, label in _STATE.items():
        yield _line(label, models, lambda m, key=key: size_in_words(m["state_bytes"][key]))  # type: ignore[misc]
    yield ("activations of a sequence", *("kept / recomputed" for _ in models))
    yield from _by_length(models, "activation_bytes_per_sequence", size_in_words)
    if "largest_batch" in models[0]:
        yield ("largest batch", *("kept / recomputed" for _ in models))
        yield from _by_length(models, "largest_batch", "{:,}".format)


def _by_length(models: Sequence[Facts], key: str, words: Callable[[int], str]) -> Iterator[Line]:
    """A line a sequence length: with all activations kept, and with activation checkpointing."""

    def cell(model: Facts, length: str) -> str:
        both = model[key].get(length)
        return "–" if both is None else f"{words(both['kept'])} / {words(both['checkpointed'])}"

    for length in sorted({int(n) for model in models for n in model[key]}):
        yield _line(f"  {length} tokens", models, lambda m, length=str(length): cell(m, length))  # type: ignore[misc]


# ---------------------------------------------------------------- a line a model


def _in_lines(models: Sequence[Facts], as_markdown: bool) -> str:
    """A line a model; with a memory, a second table of the batches that fit."""
    show = markdown if as_markdown else table
    headers = ("", "paper's count", "paper", "length", "GFLOP/token", "state", "activations")
    lines = [
        (
            model["name"],
            f"{model['paper_count']:,}",
            _figure(model),
            str(model["sequence_length"]),
            _giga(model["flops_per_token"]["training"]),
            size_in_words(model["state_bytes"]["total"]),
            size_in_words(model["activation_bytes_per_sequence"][str(model["sequence_length"])]["kept"]),
        )
        for model in models
    ]
    tables = [show(headers, lines)]
    if "largest_batch" in models[0]:
        lengths = sorted({int(n) for model in models for n in model["largest_batch"]})
        fits = [(m["name"], *(_fit(m["largest_batch"].get(str(n))) for n in lengths)) for m in models]
        tables.append(show(("largest batch of", *map(str, lengths)), fits))
    return "\n\n".join(tables)


def _fit(batch: dict[str, int] | None) -> str:
    return "–" if batch is None else f"{batch['kept']:,}"


# ---------------------------------------------------------------- what has to be said


def _notes(models: Sequence[Facts], question: Question) -> list[str]:
    """The reasons under the tables: the paper's figures first, then what the estimates mean."""
    setup, first = question.setup, models[0]
    flops = first["flops_per_token"]
    saved = 1 - flops["training_with_last_layer_pruned"] / flops["training"]
    notes = [f"* {m['name']}: {m['paper']['note']}." for m in models if m["paper"] and m["paper"]["note"]]
    notes += [
        f"{m['name']}: names no vocabulary; counted with {m['vocab_size']:,} pieces."
        for m in models
        if m["vocab_size_assumed"]
    ]
    notes += [
        "The paper counts no heads, and the pooler only where layers share weights.",
        "Training is three forward passes a token, with the masked-word head at 15 % of the positions. Computing the "
        f"last layer only where a head reads it saves {100 * saved:.1f} % ({first['name']}).",
        f"Activations: an estimate of what the backward pass needs of a sequence, in {setup.precision} on "
        f"{_DEVICES[setup.device]}: all kept, or recomputed from the blocks' inputs (train.checkpoint_activations). "
        "Sharing does not shrink them.",
    ]
    if question.memory is not None:
        notes.append(
            f"Largest batch: what fits into {100 * costs.USABLE:.0f} % of {size_in_words(question.memory)} beside "
            "weights, gradients and moments; 0 where not even these and LAMB's step do."
        )
    return notes


_DEVICES: Final = {"cuda": "a GPU", "cpu": "a CPU"}
