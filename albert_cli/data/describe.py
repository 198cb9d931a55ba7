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
from albert_cli.data.pairs import NO_LABEL, PairSettings, SentenceLoss
from albert_cli.data.records import Split, TextCounts, read_data_facts
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
from albert_cli.text.words import WORD_MARK

_LABEL_NAMES: Final[dict[SentenceLoss, tuple[str, ...]]] = {
    "sop": ("in order", "swapped"),
    "nsp": ("next", "from another document"),
    "three-way": ("in order", "swapped", "from another document"),
    "none": ("", ""),  # not shown, because no example has a label
}
_LABEL_STYLES: Final = ("green", "magenta", "yellow")
_BAR_COLUMNS: Final = 40  # width of a bar of 100 %
_UNLIMITED_COLUMNS: Final = 1 << 20  # so wide that no line is wrapped; for output to a file or a pipe
_MASK: Final = "[MASK]"
_LEGEND: Final = (
    "[words]: the model sees [MASK] and must predict these words; [words|X]: it sees X instead (_ is a [MASK])"
)


@dataclass(frozen=True)
class TextRun:
    """The text of consecutive tokens: all of them are to be predicted, or none is.

    text: the original tokens; seen: the model's input in their positions, None if they are not to be predicted.
    """

    text: str
    seen: str | None


@dataclass(frozen=True)
class DecodedExample:
    """One training example as text.

    positions: length of the sequence, special tokens included; order_label: see `data.pairs.SegmentPairs`; segments:
    the runs of segment A, and the runs of segment B, of which there may be none.
    """

    index: int
    positions: int
    order_label: int
    segments: list[list[TextRun]]


@dataclass(frozen=True)
class ExampleRequest:
    """A request to decode `count` consecutive examples, from the first example of a training step on.

    first: index of the step's first example; batch_size: number of examples in the step.
    """

    step: int
    first: int
    batch_size: int
    count: int


@dataclass(frozen=True)
class DataDescription:
    """Facts about a data directory, a sample of training sequences, and decoded examples.

    totals, vocab_size, …, heldout_entropy_nats: see `data.records.DataFacts`; lengths_by_unit: numbers of tokens per
    "sentence" and per "document"; seed: of the sample and the examples; step, batch_size: the training step of the
    examples, and its number of sequences; examples: None if none were requested.
    """

    totals: dict[Split, TextCounts]
    vocab_size: int
    dtype: str
    bytes_read: int
    tokens_read: int
    unigram_entropy_nats: float | None
    heldout_entropy_nats: float | None
    lengths_by_unit: dict[str, LengthStatistics]
    sample: SampleStatistics
    step: int
    batch_size: int
    seed: int
    examples: list[DecodedExample] | None

    def to_json(self) -> dict[str, object]:
        """Return the description as JSON values; without examples, also without their step, batch size and seed."""
        values = asdict(self)
        if self.examples is None:
            for name in ("step", "batch_size", "seed", "examples"):
                del values[name]
        return values


def describe_data(directory: Path, settings: PairSettings, seed: int, request: ExampleRequest) -> DataDescription:
    """Verify a data directory, measure a sample of its train split, and decode the requested examples.

    settings, seed: those of the training run whose sequences are sampled. Raises `CheckpointError` for damaged files.
    """
    verify_data(directory)
    facts = read_data_facts(directory)
    vocabulary = Vocabulary.load(directory / "vocabulary")
    corpus = TokenCorpus.open(directory, "train")
    examples = None
    if request.count > 0:
        index = request.first + np.arange(request.count, dtype=np.int64)
        packed = sample_batch(corpus, vocabulary, settings, seed, index)
        examples = decode_examples(packed, token_texts(vocabulary), index.tolist())
    return DataDescription(
        totals=facts.totals,
        vocab_size=facts.vocab_size,
        dtype=facts.dtype,
        bytes_read=facts.bytes_read,
        tokens_read=facts.tokens_read,
        unigram_entropy_nats=facts.unigram_entropy_nats,
        heldout_entropy_nats=facts.heldout_entropy_nats,
        lengths_by_unit=measure_lengths(corpus, seed),
        sample=measure_sample(corpus, vocabulary, settings, seed),
        step=request.step,
        batch_size=request.batch_size,
        seed=seed,
        examples=examples,
    )


# ---------------------------------------------------------------- statistics as text


def format_description(description: DataDescription, settings: PairSettings) -> list[str]:
    """Format the description as lines for a person; settings: those passed to `describe_data`."""
    seed = description.seed
    lines = [*_format_sizes(description), "", *_format_sample(description.sample, settings, seed)]
    if description.examples is not None:
        title = f"from step {description.step}, {description.batch_size} sequences a step, seed {seed}:"
        lines += ["", title, _LEGEND]
        for example in description.examples:
            lines += ["", *format_example(example, settings.sentence_loss)]
    return lines


def _format_sizes(description: DataDescription) -> list[str]:
    """Format the sizes of the splits, the lengths of sentences and documents, and the entropies."""
    length_rows = []
    for unit, lengths in description.lengths_by_unit.items():
        values = (lengths.mean, lengths.p5, lengths.p50, lengths.p95)
        length_rows.append([f"tokens per {unit}", *(f"{value:,.1f}" for value in values)])
    megabytes = description.bytes_read / 1e6
    bytes_per_token = description.bytes_read / max(description.tokens_read, 1)
    lines = [
        format_totals(description.totals),
        "",
        console.format_table(["train", "mean", "5 %", "median", "95 %"], length_rows),
        "",
        f"{megabytes:,.1f} MB of text, {bytes_per_token:.2f} bytes per token; "
        f"a vocabulary of {description.vocab_size:,}, {description.dtype} ids",
    ]
    if description.unigram_entropy_nats is not None and description.heldout_entropy_nats is not None:
        lines.append(format_entropies(description.unigram_entropy_nats, description.heldout_entropy_nats))
    return lines


def _format_sample(sample: SampleStatistics, settings: PairSettings, seed: int) -> list[str]:
    """Format the statistics of sampled sequences: fractions, and bars for the lengths of sequences and spans."""
    max_length = settings.max_seq_length
    lines = [
        f"{sample.sequences} sequences of at most {max_length} positions, seed {seed}; "
        f"{sample.examples_per_pass:,} make a pass"
    ]
    if sample.short_document_samples is not None:
        lines.append(
            f"{sample.short_documents:.1%} of the documents are shorter than {max_length} positions; "
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
    tokens_per_span = 0.0 if sample.tokens_per_span is None else sample.tokens_per_span
    lines.append(f"  {'tokens per span'.ljust(width)}  {tokens_per_span:8.3f}")
    lines += ["", "length up to    fraction"]
    for number, fraction in enumerate(sample.length_fractions, start=1):
        length = max_length * number // LENGTH_BINS  # the upper end of the bin
        lines.append(f"{length:12,}  {100 * fraction:5.1f} %  {_format_bar(fraction)}".rstrip())
    lines += ["", "words per span  fraction, and p(n)"]
    spans = zip(sample.ngram_fractions, sample.ngram_expected, strict=True)
    for n_words, (fraction, expected) in enumerate(spans, start=1):
        bar = _format_bar(fraction)
        lines.append(f"{n_words:12,}  {100 * fraction:5.1f} %  {100 * expected:5.1f} %  {bar}".rstrip())
    return lines


def _format_bar(fraction: float) -> str:
    """Return a bar whose length is the fraction of `_BAR_COLUMNS` characters."""
    return "█" * round(_BAR_COLUMNS * fraction)


# ---------------------------------------------------------------- examples as text


def token_texts(vocabulary: Vocabulary) -> list[str]:
    """Return the printable text of every token: a space separates words, and the mask token is `_MASK`."""
    suffix = vocabulary.word_suffix
    texts = []
    for text, piece in zip(vocabulary.text_pieces, vocabulary.pieces, strict=True):
        end = " " if suffix and piece.endswith(suffix) else ""  # the next token begins a word
        # A special token has no text, so it has its name.
        texts.append(replace_unprintable((text or piece).replace(WORD_MARK, " ") + end))
    texts[vocabulary.mask_id] = _MASK  # for every name, because `_format_runs` looks for it
    return texts


def decode_examples(packed: PackedBatch, texts: Sequence[str], index: Sequence[int]) -> list[DecodedExample]:
    """Decode each sequence of a batch: the original tokens, and the model's input where they are to be predicted.

    texts: the text of every token of the vocabulary (`token_texts`); index: the index of each example.
    """
    is_masked = np.zeros(packed.ids.size, bool)
    is_masked[packed.masked_index] = True
    original = original_ids(packed)
    examples = []
    for number, start in enumerate(packed.offsets[:-1].tolist()):
        stop = int(packed.offsets[number + 1])
        sep_id = original[stop - 1]  # every sequence ends with [SEP]
        segments: list[list[TextRun]] = [[], []]
        for position in range(start + 1, stop):  # without [CLS]
            runs = segments[packed.segment_ids[position]]
            text = texts[original[position]]
            if is_masked[position]:
                _append_run(runs, TextRun(text, seen=texts[packed.ids[position]]))
            elif original[position] != sep_id:
                _append_run(runs, TextRun(text, seen=None))
        label = int(packed.order_labels[number])
        examples.append(DecodedExample(index[number], stop - start, label, segments))
    return examples


def _append_run(runs: list[TextRun], run: TextRun) -> None:
    """Append a run, or join it to the last run if both are to be predicted or neither is."""
    last = runs[-1] if runs else None
    if last is not None and last.seen is None and run.seen is None:
        runs[-1] = TextRun(last.text + run.text, None)
    elif last is not None and last.seen is not None and run.seen is not None:
        runs[-1] = TextRun(last.text + run.text, last.seen + run.seen)
    else:
        runs.append(run)


def format_example(example: DecodedExample, sentence_loss: SentenceLoss) -> list[str]:
    """Format one decoded example, wrapped to a terminal's width and colored if stdout supports it."""
    title = Text(f"example {example.index}", "bold").append(f": {example.positions} positions, ", "not bold")
    label = example.order_label
    if label == NO_LABEL:
        title.append("no order label", "not bold")
    else:
        title.append(f"label {label}: {_LABEL_NAMES[sentence_loss][label]}", _LABEL_STYLES[label])
    lines = _wrap_text(title, "")
    for name, runs, style in zip("AB", example.segments, ("green", "magenta"), strict=True):
        if runs:
            lines += _wrap_text(Text(f"{name}: ", f"{style} bold"), "  ", _format_runs(runs))
    return lines


def _format_runs(runs: Sequence[TextRun]) -> Text:
    """Format the runs of a segment as `_LEGEND` explains: a run to predict is in brackets.

    The model's input follows in the same brackets unless it consists of [MASK] only.
    """
    text = Text()
    for run in runs:
        if run.seen is None:
            text.append(run.text)
            continue
        if run.text.startswith(" "):  # a space before the run goes before the bracket
            text.append(" ")
        text.append("[", "yellow").append(run.text.lstrip(" "), "black on yellow")
        if run.seen.replace(_MASK, ""):
            seen_words = run.seen.replace(_MASK, " _ ").split()
            text.append("|" + " ".join(seen_words), "yellow")
        text.append("]", "yellow")
    leading_spaces = len(text.plain) - len(text.plain.lstrip())
    text = text[leading_spaces:]
    text.rstrip()  # changes `text` itself, unlike `str.rstrip`
    return text


def _wrap_text(lead: Text, indent: str, text: Text | None = None) -> list[str]:
    """Wrap `lead`, followed by `text`, to the terminal's width, and return the lines.

    The lines contain color codes if stdout supports color. indent: spaces before the first line. Every later line is
    indented to the column at which `text` begins.
    """
    has_color = console.supports_color()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _UNLIMITED_COLUMNS
    # This console prints nothing to the terminal: it turns styled text into strings.
    screen = Console(file=io.StringIO(), width=width, force_terminal=has_color, no_color=not has_color, highlight=False)
    margin = len(indent) + len(lead.plain)
    rows = [Text()]
    if text is not None:
        rows = list(text.wrap(screen, max(20, width - margin)))
    lines = []
    line_start = Text(indent).append_text(lead)
    for row in rows:
        with screen.capture() as captured:
            screen.print(line_start.append_text(row), end="", soft_wrap=True)
        lines.append(captured.get())
        line_start = Text(" " * margin)
    return lines
