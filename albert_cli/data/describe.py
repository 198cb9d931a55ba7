"""Describe a data directory for `albert inspect`: sizes, a sample of sequences, and decoded examples."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.text import Text

from albert_cli import console
from albert_cli.data.batches import PackedBatch, original_ids, sample_batch
from albert_cli.data.build_report import format_entropies, format_totals
from albert_cli.data.pairs import PairSettings, SentenceLoss
from albert_cli.data.records import Split, UnitCounts, read_data_facts
from albert_cli.data.sample_statistics import (
    LENGTH_BINS,
    LengthStatistics,
    SampleStatistics,
    measure_lengths,
    measure_sample,
)
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.verification import verify_data
from albert_cli.text.token_statistics import replace_unprintable
from albert_cli.text.vocabulary import Vocabulary

_LABEL_NAMES: Final[dict[SentenceLoss, tuple[str, ...]]] = {
    "sop": ("in order", "swapped"),
    "nsp": ("next", "from another document"),
    "three-way": ("in order", "swapped", "from another document"),
    "none": ("", ""),
}
_LABEL_STYLES: Final = ("green", "magenta", "yellow")
_BAR_COLUMNS: Final = 40  # the width of a bar of 100 %
_MASK: Final = "[MASK]"
_LEGEND: Final = "in brackets: predicted words, seen as [MASK]; [words|X]: seen as X instead, where _ stands for [MASK]"


@dataclass(frozen=True)
class TextRun:
    """Consecutive tokens as text: `text` is the original, `seen` the model's input, None if they are not predicted."""

    text: str
    seen: str | None


@dataclass(frozen=True)
class DecodedExample:
    """One training example as text, segment by segment."""

    index: int
    positions: int
    order_label: int
    segments: list[list[TextRun]]


@dataclass(frozen=True)
class ExampleRequest:
    """A request for `count` examples from number `first` on, the first example of step `step`."""

    step: int
    first: int
    batch_size: int
    count: int


@dataclass(frozen=True)
class DataDescription:
    """Facts about a data directory; `examples` is None if none were requested."""

    totals: dict[Split, UnitCounts]
    vocab_size: int
    dtype: str
    bytes_read: int
    unigram_entropy_nats: float | None
    heldout_entropy_nats: float | None
    tokens_per: dict[str, LengthStatistics]
    sample: SampleStatistics
    step: int | None = None
    batch_size: int | None = None
    seed: int | None = None
    examples: list[DecodedExample] | None = None

    def to_json(self) -> dict[str, object]:
        """Return the description as JSON values; without examples, it leaves out the settings that select them."""
        values = asdict(self)
        if self.examples is None:
            for name in ("step", "batch_size", "seed", "examples"):
                del values[name]
        return values


def describe_data(directory: Path, settings: PairSettings, seed: int, request: ExampleRequest) -> DataDescription:
    """Verify a data directory, measure a sample of its sequences, and decode the requested examples."""
    verify_data(directory)
    facts = read_data_facts(directory)
    vocabulary = Vocabulary.load(directory / "vocabulary")
    corpus = TokenCorpus.open(directory, "train")
    examples = None
    if request.count > 0:
        index = request.first + np.arange(request.count, dtype=np.int64)
        packed = sample_batch(corpus, vocabulary, settings, seed, index)
        examples = decode_examples(packed, vocabulary.pieces, index.tolist())
    return DataDescription(
        totals=facts.totals,
        vocab_size=facts.vocab_size,
        dtype=facts.dtype,
        bytes_read=facts.bytes_read,
        unigram_entropy_nats=facts.unigram_entropy_nats,
        heldout_entropy_nats=facts.heldout_entropy_nats,
        tokens_per=measure_lengths(corpus, seed),
        sample=measure_sample(corpus, vocabulary, settings, seed),
        step=request.step,
        batch_size=request.batch_size,
        seed=seed,
        examples=examples,
    )


# ---------------------------------------------------------------- statistics as text


def format_description(description: DataDescription, settings: PairSettings, seed: int) -> list[str]:
    """Format the description as lines for a person."""
    lines = [*_format_sizes(description), "", *_format_sample(description.sample, settings, seed)]
    if description.examples is not None:
        head = f"from step {description.step}, {description.batch_size} sequences a step, seed {seed}:"
        lines += ["", head, _LEGEND]
        for example in description.examples:
            lines += ["", *format_example(example, settings.sentence_loss)]
    return lines


def _format_sizes(description: DataDescription) -> list[str]:
    length_rows = [
        [f"tokens per {unit}", f"{length.mean:,.1f}", f"{length.p5:,.1f}", f"{length.p50:,.1f}", f"{length.p95:,.1f}"]
        for unit, length in description.tokens_per.items()
    ]
    tokens = sum(counts.tokens for counts in description.totals.values())
    megabytes = description.bytes_read / 1e6
    bytes_per_token = description.bytes_read / max(tokens, 1)
    lines = [
        format_totals(description.totals),
        "",
        console.format_table(["train", "mean", "5 %", "median", "95 %"], length_rows),
        "",
        f"{megabytes:,.1f} MB of text, {bytes_per_token:.2f} bytes per token; "
        f"a vocabulary of {description.vocab_size:,}, {description.dtype} ids",
    ]
    if description.unigram_entropy_nats is not None:
        lines.append(format_entropies(description.unigram_entropy_nats, description.heldout_entropy_nats))
    return lines


def _format_sample(sample: SampleStatistics, settings: PairSettings, seed: int) -> list[str]:
    longest = settings.max_seq_length
    lines = [
        f"{sample.sequences} sequences of at most {longest} positions, seed {seed}; "
        f"{sample.examples_per_pass:,} make a pass"
    ]
    if sample.short_document_samples is not None:
        lines.append(
            f"{sample.short_documents:.1%} of the documents are shorter than {longest} positions; "
            f"a pass samples such a document {sample.short_document_samples:.2f} times on average"
        )
    fractions = {
        "filled": sample.fill,
        "of full length": sample.full_fraction,
        "masked positions": sample.mask_rate,
        f"label 1 ({_LABEL_NAMES[settings.sentence_loss][1]})": sample.label_1_fraction,
        "of one segment": sample.one_segment_fraction,
        "unknown tokens": sample.unknown_fraction,
    }
    width = max(map(len, fractions))
    for name, fraction in fractions.items():
        if fraction is not None:
            lines.append(f"  {name.ljust(width)}  {100 * fraction:8.3f} %")
    lines.append(f"  {'tokens per span'.ljust(width)}  {sample.tokens_per_span or 0:8.3f}")
    edges = [longest * (number + 1) // LENGTH_BINS for number in range(LENGTH_BINS)]
    lines += ["", "length up to    fraction", *_format_bars(edges, sample.length_fractions)]
    words = range(1, settings.ngram + 1)
    bars = _format_bars(words, sample.ngram_fractions, sample.ngram_expected)
    return [*lines, "", "words per span  fraction, and p(n)", *bars]


def _format_bars(labels: Sequence[int], fractions: Sequence[float], expected: Sequence[float] = ()) -> list[str]:
    """Return a line for each fraction: its label, the fraction, the expected fraction if given, and a bar."""
    lines = []
    for number, (label, fraction) in enumerate(zip(labels, fractions, strict=True)):
        line = f"{label:12,}  {100 * fraction:5.1f} %"
        if expected:
            line += f"  {100 * expected[number]:5.1f} %"
        lines.append(f"{line}  {'█' * round(_BAR_COLUMNS * fraction)}".rstrip())
    return lines


# ---------------------------------------------------------------- examples as text


def decode_examples(packed: PackedBatch, pieces: Sequence[str], index: Sequence[int]) -> list[DecodedExample]:
    """Decode each sequence of a batch; `index` has the number of each example."""
    texts = [replace_unprintable(piece.replace("▁", " ")) for piece in pieces]
    is_masked = np.zeros(packed.ids.size, bool)
    is_masked[packed.masked_index] = True
    original = original_ids(packed)
    examples = []
    for number, start in enumerate(packed.offsets[:-1].tolist()):
        stop = int(packed.offsets[number + 1])
        sep_id = original[stop - 1]  # every sequence ends with [SEP]
        segments: list[list[TextRun]] = [[], []]
        for position in range(start + 1, stop):
            if is_masked[position] or original[position] != sep_id:
                text = texts[original[position]]
                seen = texts[packed.ids[position]] if is_masked[position] else None
                _append_run(segments[packed.segment_ids[position]], TextRun(text, seen))
        label = int(packed.order_labels[number])
        examples.append(DecodedExample(index[number], stop - start, label, segments))
    return examples


def _append_run(runs: list[TextRun], run: TextRun) -> None:
    """Append a run, or join it to the last run if both are predicted or neither is."""
    if not runs or (runs[-1].seen is None) != (run.seen is None):
        runs.append(run)
        return
    last = runs.pop()
    seen = None
    if last.seen is not None and run.seen is not None:
        seen = last.seen + run.seen
    runs.append(TextRun(last.text + run.text, seen))


def format_example(example: DecodedExample, sentence_loss: SentenceLoss) -> list[str]:
    """Format one decoded example, wrapped to a terminal's width and colored if stdout supports it."""
    head = Text(f"example {example.index}", "bold").append(f": {example.positions} positions, ", "not bold")
    label = example.order_label
    if label < 0:
        head.append("no order label", "not bold")
    else:
        head.append(f"label {label}: {_LABEL_NAMES[sentence_loss][label]}", _LABEL_STYLES[label])
    lines = _wrap_text(head, "")
    for name, runs, style in zip("AB", example.segments, ("green", "magenta"), strict=True):
        if runs:
            lines += _wrap_text(Text(f"{name}: ", f"{style} bold"), "  ", _format_runs(runs))
    return lines


def _format_runs(runs: Sequence[TextRun]) -> Text:
    """Format a segment with predicted text in brackets, and the model's input next to it unless that is all [MASK]."""
    text = Text()
    for run in runs:
        if run.seen is None:
            text.append(run.text)
            continue
        if run.text.startswith(" "):
            text.append(" ")
        text.append("[", "yellow").append(run.text.lstrip(" "), "black on yellow")
        if run.seen.replace(_MASK, ""):
            text.append("|" + " ".join(run.seen.replace(_MASK, " _ ").split()), "yellow")
        text.append("]", "yellow")
    leading_spaces = len(text.plain) - len(text.plain.lstrip())
    text = text[leading_spaces:]
    text.rstrip()
    return text


def _wrap_text(lead: Text, indent: str, text: Text | None = None) -> list[str]:
    """Wrap text to the terminal's width: `lead` begins the first line, and the other lines are indented to its end."""
    has_color = console.supports_color()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1 << 20
    screen = Console(file=io.StringIO(), width=width, force_terminal=has_color, no_color=not has_color, highlight=False)
    margin = len(indent) + len(lead.plain)
    rows = [Text()] if text is None else text.wrap(screen, max(20, width - margin))
    lines = []
    for number, row in enumerate(rows):
        start = Text(indent).append_text(lead) if number == 0 else Text(" " * margin)
        with screen.capture() as captured:
            screen.print(start.append_text(row), end="", soft_wrap=True)
        lines.append(captured.get())
    return lines
