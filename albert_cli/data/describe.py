"""A data directory for a person: how much text, what the drawn sequences look like, some of them decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from albert_cli import console
from albert_cli.data.batches import batch
from albert_cli.data.examples import LABELS, LEGEND, decode, show
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import TokenCorpus, read_facts
from albert_cli.data.statistics import LENGTH_BINS, length_statistics, sample_statistics
from albert_cli.text.vocabulary import Vocabulary

_FACTS = ("totals", "vocab_size", "dtype", "bytes_read", "unigram_entropy_nats", "heldout_own_entropy_nats")


@dataclass(frozen=True)
class Place:
    """Which examples to show: those from number `first` on, where `step` begins at this batch size."""

    settings: PairSettings
    seed: int
    step: int
    batch_size: int
    first: int


def describe_data(directory: Path, place: Place, examples: int) -> tuple[dict[str, Any], list[str]]:
    """What the directory holds, as a mapping and as lines."""
    settings, seed = place.settings, place.seed
    data: Mapping[str, Any] = read_facts(directory)
    vocabulary = Vocabulary.load(directory / "vocabulary")
    corpus = TokenCorpus.open(directory, "train")
    facts: dict[str, Any] = {name: data[name] for name in _FACTS}
    facts |= {"tokens_per": length_statistics(corpus, seed)}
    facts |= {"sample": sample_statistics(corpus, vocabulary, settings, seed)}
    lines = [*_size_lines(facts), "", *_sample_lines(facts["sample"], settings, seed)]
    if examples > 0:
        index = place.first + np.arange(examples, dtype=np.int64)
        drawn = batch(corpus, vocabulary, settings, seed, index)
        facts |= {"step": place.step, "batch_size": place.batch_size, "seed": seed}
        facts["examples"] = decode(drawn, vocabulary.pieces, index.tolist())
        lines += ["", f"from step {place.step}, {place.batch_size} sequences a step, seed {seed}:", LEGEND]
        for example in facts["examples"]:
            lines += ["", *show(example, settings)]
    return facts, lines


def _size_lines(facts: dict[str, Any]) -> list[str]:
    totals = facts["totals"]
    rows = [[split, *(f"{n:,}" for n in counts.values())] for split, counts in totals.items()]
    lengths = [
        [f"tokens a {unit}", *(f"{found[name]:,.1f}" for name in ("mean", "p5", "p50", "p95"))]
        for unit, found in facts["tokens_per"].items()
    ]
    tokens = sum(counts["tokens"] for counts in totals.values())
    size = f"{facts['bytes_read'] / 1e6:,.1f} MB of text, {facts['bytes_read'] / max(tokens, 1):.2f} bytes a token"
    lines = [console.table(["split", "documents", "sentences", "tokens"], rows), ""]
    lines += [console.table(["train", "mean", "5 %", "median", "95 %"], lengths), ""]
    lines += [f"{size}; a vocabulary of {facts['vocab_size']:,}, {facts['dtype']} ids"]
    if facts["unigram_entropy_nats"] is not None:
        own = facts["heldout_own_entropy_nats"]
        lines.append(
            f"unigram entropy of the held-out tokens: {facts['unigram_entropy_nats']:.3f} nats (own: {own:.3f})"
        )
    return lines


def _sample_lines(drawn: dict[str, Any], settings: PairSettings, seed: int) -> list[str]:
    longest, passes = settings.max_seq_length, drawn["examples_per_pass"]
    lines = [f"{drawn['sequences']} sequences of at most {longest} positions, seed {seed}; {passes:,} make a pass"]
    labels = LABELS[settings.sentence_loss]
    shares = {
        "filled": drawn["fill"],
        "of full length": drawn["full_share"],
        "masked positions": drawn["mask_rate"],
        f"label 1 ({labels[1]})": drawn["label_1_share"],
        "of one segment": drawn["one_segment_share"],
        "unknown tokens": drawn["unknown_share"],
    }
    width = max(map(len, shares))
    lines += [f"  {name.ljust(width)}  {100 * share:8.3f} %" for name, share in shares.items() if share is not None]
    lines.append(f"  {'tokens a span'.ljust(width)}  {drawn['tokens_per_span'] or 0:8.3f}")
    edges = [longest * (n + 1) // LENGTH_BINS for n in range(LENGTH_BINS)]
    lines += ["", "length up to    share", *_bars(edges, drawn["length_share"])]
    words = range(1, settings.ngram + 1)
    return [*lines, "", "words a span    share, and p(n)", *_bars(words, drawn["ngram_share"], drawn["ngram_expected"])]


def _bars(names: Sequence[int], shares: Sequence[float], expected: Sequence[float] | None = None) -> list[str]:
    """A bar for each share, 40 columns for 100 %; with what was expected behind it."""
    behind = [f"  {100 * p:5.1f} %" for p in expected] if expected is not None else [""] * len(shares)
    return [
        f"{name:12,}  {100 * share:5.1f} %{beside}  {'█' * round(40 * share)}".rstrip()
        for name, share, beside in zip(names, shares, behind, strict=True)
    ]
