"""A data directory for a person: how much text, what a sample of sequences drawn from it looks like, some decoded."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from albert_cli import console
from albert_cli.data.batches import PackedBatch, original_ids, sample_batch
from albert_cli.data.masking import ngram_probabilities, select_spans
from albert_cli.data.pairs import SPECIALS, PairSettings, examples_per_pass, pack_sequences, sample_pairs
from albert_cli.data.shards import TokenCorpus, read_data_facts
from albert_cli.data.verification import verify_data
from albert_cli.randomness import Integers, Stream, bounded_ints, hash_keys
from albert_cli.text.token_statistics import replace_unprintable
from albert_cli.text.vocabulary import Vocabulary

SEQUENCES = 512  # drawn and masked
LENGTH_BINS = 8
_UNITS = 4096  # sentences and documents whose length is read
_FACTS = ("totals", "vocab_size", "dtype", "bytes_read", "unigram_entropy_nats", "heldout_entropy_nats")
_LABELS = {
    "sop": ("in order", "swapped"),
    "nsp": ("next", "from another document"),
    "three-way": ("in order", "swapped", "from another document"),
    "none": ("", ""),
}
_MASK = "[MASK]"
_LEGEND = "[…]: to predict; seen as [MASK], or as what follows the |, with _ for [MASK]"


def describe_data(
    directory: Path, settings: PairSettings, seed: int, step: int, batch_size: int, first: int, examples: int
) -> tuple[dict[str, Any], list[str]]:
    """What the directory holds, and its examples from number `first` on, which begin `step`: a mapping, and lines."""
    verify_data(directory)
    data: Mapping[str, Any] = read_data_facts(directory)
    vocabulary = Vocabulary.load(directory / "vocabulary")
    corpus = TokenCorpus.open(directory, "train")
    facts: dict[str, Any] = {name: data[name] for name in _FACTS}
    facts |= {"tokens_per": measure_lengths(corpus, seed)}
    facts |= {"sample": measure_sample(corpus, vocabulary, settings, seed)}
    lines = [*_format_sizes(facts), "", *_format_sample(facts["sample"], settings, seed)]
    if examples > 0:
        index = first + np.arange(examples, dtype=np.int64)
        drawn = sample_batch(corpus, vocabulary, settings, seed, index)
        facts |= {"step": step, "batch_size": batch_size, "seed": seed}
        facts["examples"] = decode_examples(drawn, vocabulary.pieces, index.tolist())
        lines += ["", f"from step {step}, {batch_size} sequences a step, seed {seed}:", _LEGEND]
        for example in facts["examples"]:
            lines += ["", *format_example(example, settings)]
    return facts, lines


def _format_sizes(facts: dict[str, Any]) -> list[str]:
    totals = facts["totals"]
    rows = [[split, *(f"{n:,}" for n in counts.values())] for split, counts in totals.items()]
    lengths = [
        [f"tokens a {unit}", *(f"{found[name]:,.1f}" for name in ("mean", "p5", "p50", "p95"))]
        for unit, found in facts["tokens_per"].items()
    ]
    tokens = sum(counts["tokens"] for counts in totals.values())
    size = f"{facts['bytes_read'] / 1e6:,.1f} MB of text, {facts['bytes_read'] / max(tokens, 1):.2f} bytes a token"
    lines = [console.format_table(["split", "documents", "sentences", "tokens"], rows), ""]
    lines += [console.format_table(["train", "mean", "5 %", "median", "95 %"], lengths), ""]
    lines += [f"{size}; a vocabulary of {facts['vocab_size']:,}, {facts['dtype']} ids"]
    if facts["unigram_entropy_nats"] is not None:
        own = facts["heldout_entropy_nats"]
        lines.append(
            f"unigram entropy of the held-out tokens: {facts['unigram_entropy_nats']:.3f} nats (own: {own:.3f})"
        )
    return lines


def _format_sample(drawn: dict[str, Any], settings: PairSettings, seed: int) -> list[str]:
    longest, passes = settings.max_seq_length, drawn["examples_per_pass"]
    lines = [f"{drawn['sequences']} sequences of at most {longest} positions, seed {seed}; {passes:,} make a pass"]
    if draws := drawn["short_document_draws"]:
        lines.append(
            f"{drawn['short_documents']:.1%} of the documents are shorter: a pass draws each {draws:.2f} times"
        )
    labels = _LABELS[settings.sentence_loss]
    shares = {
        "filled": drawn["fill"],
        "of full length": drawn["full_fraction"],
        "masked positions": drawn["mask_rate"],
        f"label 1 ({labels[1]})": drawn["label_1_fraction"],
        "of one segment": drawn["one_segment_fraction"],
        "unknown tokens": drawn["unknown_fraction"],
    }
    width = max(map(len, shares))
    lines += [f"  {name.ljust(width)}  {100 * share:8.3f} %" for name, share in shares.items() if share is not None]
    lines.append(f"  {'tokens a span'.ljust(width)}  {drawn['tokens_per_span'] or 0:8.3f}")
    edges = [longest * (n + 1) // LENGTH_BINS for n in range(LENGTH_BINS)]
    lines += ["", "length up to    share", *_format_bars(edges, drawn["length_fractions"])]
    words = range(1, settings.ngram + 1)
    return [
        *lines,
        "",
        "words a span    share, and p(n)",
        *_format_bars(words, drawn["ngram_fractions"], drawn["ngram_expected"]),
    ]


def _format_bars(names: Sequence[int], shares: Sequence[float], expected: Sequence[float] | None = None) -> list[str]:
    """A bar for each share, 40 columns for 100 %; with what was expected behind it."""
    behind = [f"  {100 * p:5.1f} %" for p in expected] if expected is not None else [""] * len(shares)
    return [
        f"{name:12,}  {100 * share:5.1f} %{beside}  {'█' * round(40 * share)}".rstrip()
        for name, share, beside in zip(names, shares, behind, strict=True)
    ]


# ---------------------------------------------------------------- measured on a random sample


def measure_sample(corpus: TokenCorpus, vocabulary: Vocabulary, settings: PairSettings, seed: int) -> dict[str, Any]:
    """How the first sequences of a run with this seed come out; shares lie in 0..1.

    fill: mean length over the longest allowed; length_fractions: of the lengths in `LENGTH_BINS` equal bins up to it;
    full_fraction: sequences of exactly that length; label_1_fraction: of those with an order label; mask_rate: of all
    positions; shortened_fraction: spans cut to fit the budget or the end of their segment; ngram_fractions: spans of
    1, 2, … words among those chosen, ngram_expected: p(n), from which their lengths are drawn (long spans touch others
    and are left out more often); short_documents: of a sample of all, those shorter than a sequence, and
    short_document_draws: how often a pass draws one of them on average.
    """
    index = np.arange(SEQUENCES, dtype=np.int64)
    pairs = sample_pairs(corpus, index, settings, seed)
    sequences = pack_sequences(corpus, pairs, vocabulary.cls_id, vocabulary.sep_id)
    spans = select_spans(sequences, vocabulary, settings, seed, index)
    words = np.bincount(spans.words, minlength=settings.ngram + 1)[1:]
    labelled = pairs.order_labels[pairs.order_labels >= 0]
    length = np.diff(sequences.offsets)
    bins = np.histogram(length, LENGTH_BINS, (0, settings.max_seq_length))[0]
    fit = _sample_document_lengths(corpus, seed) / (settings.max_seq_length - SPECIALS)
    return {
        "sequences": SEQUENCES,
        "max_seq_length": settings.max_seq_length,
        "examples_per_pass": examples_per_pass(corpus, settings),
        "fill": round(float(length.mean()) / settings.max_seq_length, 4),
        "short_documents": _fraction(fit < 1),
        "short_document_draws": round(float(fit[fit < 1].mean()), 4) if (fit < 1).any() else None,
        "full_fraction": _fraction(length == settings.max_seq_length),
        "length_fractions": _fractions(bins),
        "one_segment_fraction": _fraction(pairs.b.length == 0),
        "label_1_fraction": _fraction(labelled == 1) if labelled.size else None,
        "mask_rate": round(spans.positions().size / sequences.ids.size, 4),
        "tokens_per_span": round(float((spans.stop - spans.start).mean()), 3) if spans.start.size else None,
        "shortened_fraction": _fraction(spans.is_shortened) if spans.start.size else None,
        "ngram_fractions": _fractions(words),
        "ngram_expected": [round(float(p), 4) for p in ngram_probabilities(settings)],
        "unknown_fraction": round(float((sequences.ids == vocabulary.unk_id).mean()), 6),
    }


def _fraction(chosen: NDArray[np.bool_]) -> float:
    return round(float(chosen.mean()), 4)


def _fractions(counts: Integers) -> list[float]:
    return [round(float(n), 4) for n in counts / max(int(counts.sum()), 1)]


def _sample_document_lengths(corpus: TokenCorpus, seed: int) -> Integers:
    """The lengths of `_UNITS` documents, a uniform sample."""
    number = bounded_ints(hash_keys(seed, Stream.STATISTICS, np.arange(_UNITS)), corpus.documents)
    tokens = np.empty_like(number)
    for rows, shard, _, first in corpus.group_by_shard(number, corpus.document_starts):
        begin, end = shard.sentences[shard.documents[number[rows] - first + [[0], [1]]]].astype(np.int64)
        tokens[rows] = end - begin
    return tokens


def measure_lengths(corpus: TokenCorpus, seed: int = 0) -> dict[str, dict[str, float]]:
    """Tokens a sentence and a document: mean over all, and the 5th, 50th and 95th percentiles of a sample.

    The sample is uniform over documents, and over the sentences of every shard in proportion.
    """
    of_sentences, sentences = [], 0
    for which, shard in enumerate(corpus.shards):
        size = shard.sentences.size - 1
        share = -(-_UNITS * shard.n_tokens // corpus.tokens)
        toss = bounded_ints(hash_keys(seed + 1, Stream.STATISTICS, np.arange(share) + which * _UNITS), size)
        of_sentences.append(np.diff(shard.sentences[np.stack([toss, toss + 1])].astype(np.int64), axis=0)[0])
        sentences += size
    means = {"sentence": corpus.tokens / sentences, "document": corpus.tokens / corpus.documents}
    lengths = {"sentence": np.concatenate(of_sentences), "document": _sample_document_lengths(corpus, seed)}
    return {
        name: {"mean": round(means[name], 2)} | {f"p{p}": float(np.percentile(lengths[name], p)) for p in (5, 50, 95)}
        for name in lengths
    }


# ---------------------------------------------------------------- examples as text


def decode_examples(packed: PackedBatch, pieces: Sequence[str], index: Sequence[int]) -> list[dict[str, Any]]:
    """Each sequence as text: its segments as lists of (text, what is seen, or None where nothing is predicted)."""
    ids, original = packed.ids.tolist(), original_ids(packed).tolist()
    masked = np.zeros(len(ids), bool)
    masked[packed.masked_index] = True
    shown = [replace_unprintable(piece.replace("▁", " ")) for piece in pieces]
    decoded = []
    for number, (start, stop) in enumerate(zip(packed.offsets[:-1], packed.offsets[1:], strict=True)):
        segments: list[list[tuple[str, str | None]]] = [[], []]
        for position in range(int(start) + 1, int(stop)):
            if original[position] != original[int(stop) - 1] or masked[position]:  # every [SEP] ends a segment
                run = segments[int(packed.segment_ids[position])]
                text = shown[original[position]]
                seen = shown[ids[position]] if masked[position] else None
                if run and (run[-1][1] is None) == (seen is None):
                    text, seen = run[-1][0] + text, None if seen is None else str(run[-1][1]) + seen
                    run.pop()
                run.append((text, seen))
        label = int(packed.order_labels[number])
        size = int(stop - start)
        decoded.append({"index": index[number], "positions": size, "order_label": label, "segments": segments})
    return decoded


def format_example(example: dict[str, Any], settings: PairSettings) -> list[str]:
    """One decoded example for a person, wrapped where stdout is a terminal, coloured where that has colours."""
    label = example["order_label"]
    head = Text(f"example {example['index']}", "bold").append(f": {example['positions']} positions, ", "not bold")
    if label < 0:
        head.append("no order label", "not bold")
    else:
        head.append(f"label {label}: {_LABELS[settings.sentence_loss][label]}", ("green", "magenta", "yellow")[label])
    lines = _wrap_text(head, "")
    for name, segment, style in zip("AB", example["segments"], ("green", "magenta"), strict=True):
        if segment:
            text = Text()
            for token, seen in segment:
                if seen is None:
                    text.append(token)
                    continue
                # A predicted span in brackets, and what is seen in its place where something is.
                text.append(" " * token.startswith(" ")).append("[", "yellow").append(
                    token.lstrip(" "), "black on yellow"
                )
                if seen.replace(_MASK, ""):
                    text.append("|" + " ".join(seen.replace(_MASK, " _ ").split()), "yellow")
                text.append("]", "yellow")
            text = text[len(text.plain) - len(text.plain.lstrip()) :]
            text.rstrip()
            lines += _wrap_text(Text(f"{name}: ", f"{style} bold"), "  ", text)
    return lines


def _wrap_text(lead: Text, indent: str, text: Text | None = None) -> list[str]:
    """Lines of a terminal's width that begin with `lead` and, from the second on, with blanks below it."""
    colour, is_terminal = console.supports_color(), sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 1 << 20
    screen = Console(file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour, highlight=False)
    margin = len(indent) + len(lead.plain)
    rows = text.wrap(screen, max(20, width - margin)) if text is not None else [Text()]
    lines = []
    for number, row in enumerate(rows):
        start = Text(indent).append_text(lead) if number == 0 else Text(" " * margin)
        with screen.capture() as captured:
            screen.print(start.append_text(row), end="", soft_wrap=True)
        lines.append(captured.get())
    return lines
