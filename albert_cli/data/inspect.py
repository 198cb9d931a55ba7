"""`albert inspect`: statistics of a directory, decoded examples, and whether its bytes are intact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albert_cli import console, store
from albert_cli.data.batches import PairSettings, batch
from albert_cli.data.examples import LABELS, LEGEND, decode, readable, show
from albert_cli.data.shards import TokenCorpus
from albert_cli.data.statistics import LENGTH_BINS, length_statistics, sample_statistics
from albert_cli.errors import CheckpointError, InputError

_UNFINISHED = {"plan.json": "data", "request.json": "vocabulary"}  # what a directory holds while it is made


def describe(
    directory: Path,
    examples: int = 0,
    seed: int = 0,
    step: int = 0,
    verify: bool = False,
    settings: PairSettings | None = None,
    batch_size: int = 32,
    first: int | None = None,
) -> tuple[dict[str, Any], str]:
    """What `directory` holds, as a mapping and as text.

    examples: how many training examples to decode, from the first of `step` at `batch_size` on, for a data
    directory (`first`: its number, where batches grow); verify: re-hash every file that a manifest below names.
    Raises `CheckpointError` when there is nothing to describe or a file is damaged.
    """
    if not directory.is_dir():
        raise CheckpointError(f"{directory}: no such directory")
    manifest = store.read_manifest(directory)
    kind = manifest.kind if manifest is not None else _kind_without_manifest(directory)
    facts: dict[str, Any] = {"directory": str(directory), "kind": kind}
    if manifest is not None:
        facts |= {"fingerprint": manifest.fingerprint(), "created_by": manifest.created_by}
        facts |= {"parents": dict(manifest.parents)}
    if verify:  # first: what is damaged cannot be described
        facts["verified"] = _verify_below(directory)
    text = [f"{directory}: {kind}" + (f" {facts['fingerprint']}" if manifest else ", unverified (no manifest)")]
    if kind == "data":
        more, lines = _describe_data(directory, examples, seed, (step, batch_size, first), settings or PairSettings())
    elif kind == "vocabulary":
        more, lines = _describe_vocabulary(directory)
    else:
        more, lines = _describe_other(directory)
    facts |= more
    text += lines
    if verify:
        text.append(f"verified: {facts['verified']} files match their SHA-256")
    return facts, "\n".join(text)


def _kind_without_manifest(directory: Path) -> str:
    if (directory / "metrics.jsonl").is_file() or any(directory.glob("step-*")):
        return "run"
    if (directory / "results.json").is_file():
        return "evaluation"
    if (directory / "config.json").is_file():
        return "Hugging Face model"
    for name, kind in _UNFINISHED.items():
        if (directory / name).is_file():
            return f"unfinished {kind}"
    raise CheckpointError(f"{directory}: nothing of this program, and no Hugging Face model")


def _verify_below(directory: Path) -> int:
    """Re-hash everything below; the number of files."""
    found = sorted(p.parent for p in directory.rglob(store.MANIFEST) if not _is_hidden(p, directory))
    if not found:
        raise CheckpointError(f"{directory}: no {store.MANIFEST}, so nothing can be verified")
    return sum(len(store.verify(place).files) for place in found)


def _is_hidden(path: Path, below: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(below).parts)


def _pairs_of(facts: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Aligned lines `name  value` of the facts that are there."""
    width = max(map(len, names))
    return [f"  {name.ljust(width)}  {_plain(facts[name])}" for name in names if facts.get(name) is not None]


def _plain(value: object) -> str:
    """A value for a person: no braces, quotes or brackets around what it is made of."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(v)}" for name, v in value.items() if v not in (None, ""))
    if isinstance(value, list):
        return " ".join(map(_plain, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# ---------------------------------------------------------------- data


def _describe_data(
    directory: Path, examples: int, seed: int, place: tuple[int, int, int | None], settings: PairSettings
) -> tuple[dict[str, Any], list[str]]:
    from albert_cli.text.vocabulary import Vocabulary

    data = store.read_json(directory / "data.json")
    vocabulary = Vocabulary.load(directory / "vocabulary")
    corpus = TokenCorpus.open(directory, "train")
    names = ("totals", "vocab_size", "dtype", "bytes_read", "unigram_entropy_nats", "heldout_own_entropy_nats")
    facts: dict[str, Any] = {name: data[name] for name in names}
    facts |= {"pieces_per": length_statistics(corpus, seed)}
    facts |= {"sample": sample_statistics(corpus, vocabulary, settings, seed)}
    lines = [*_size_lines(facts), "", *_sample_lines(facts["sample"], settings, seed)]
    if examples > 0:
        step, batch_size, first = place
        index = (step * batch_size if first is None else first) + np.arange(examples, dtype=np.int64)
        lines += ["", f"from step {step}, {batch_size} sequences a step, seed {seed}:", LEGEND]
        drawn_batch = batch(corpus, vocabulary, settings, seed, index)
        facts |= {"step": step, "batch_size": batch_size, "seed": seed}
        facts["examples"] = decode(drawn_batch, vocabulary.pieces, index.tolist())
        for example in facts["examples"]:
            lines += ["", *show(example, settings)]
    return facts, lines


def _size_lines(facts: dict[str, Any]) -> list[str]:
    """How much text there is, and how long its sentences and documents are."""
    totals = facts["totals"]
    rows = [[split, *(f"{n:,}" for n in counts.values())] for split, counts in totals.items()]
    lengths = [
        [f"pieces a {unit}", *(f"{found[name]:,.1f}" for name in ("mean", "p5", "p50", "p95"))]
        for unit, found in facts["pieces_per"].items()
    ]
    pieces = sum(counts["tokens"] for counts in totals.values())
    size = f"{facts['bytes_read'] / 1e6:,.1f} MB of text, {facts['bytes_read'] / max(pieces, 1):.2f} bytes a piece"
    lines = [console.table(["split", "documents", "sentences", "pieces"], rows), ""]
    lines += [console.table(["train", "mean", "5 %", "median", "95 %"], lengths), ""]
    lines += [f"{size}; a vocabulary of {facts['vocab_size']:,}, {facts['dtype']} ids"]
    if facts["unigram_entropy_nats"] is not None:
        own = facts["heldout_own_entropy_nats"]
        lines.append(
            f"unigram entropy of the held-out pieces: {facts['unigram_entropy_nats']:.3f} nats (own: {own:.3f})"
        )
    return lines


def _sample_lines(drawn: dict[str, Any], settings: PairSettings, seed: int) -> list[str]:
    """What the sequences look like, with bars for their lengths and their n-grams."""
    longest, passes = settings.max_seq_length, drawn["examples_per_pass"]
    lines = [f"{drawn['sequences']} sequences of at most {longest} positions, seed {seed}; {passes:,} make a pass"]
    labels = LABELS[settings.sentence_loss]
    shares = {
        "filled": drawn["fill"],
        "of full length": drawn["full_share"],
        "masked positions": drawn["mask_rate"],
        "permuted positions": drawn["permuted_rate"] or None,
        f"label 1 ({labels[1]})": drawn["label_1_share"],
        "of one segment": drawn["one_segment_share"],
        "unknown pieces": drawn["unknown_share"],
    }
    width = max(map(len, shares))
    lines += [f"  {name.ljust(width)}  {100 * share:8.3f} %" for name, share in shares.items() if share is not None]
    lines.append(f"  {'pieces a span'.ljust(width)}  {drawn['pieces_per_span'] or 0:8.3f}")
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


# ---------------------------------------------------------------- everything else


def _describe_vocabulary(directory: Path) -> tuple[dict[str, Any], list[str]]:
    from dataclasses import asdict

    from albert_cli.text import statistics
    from albert_cli.text.vocabulary import REPORT, Vocabulary

    vocabulary = Vocabulary.load(directory)
    ordinary = vocabulary.pieces[vocabulary.first_ordinary_id :]
    lengths = np.array([len(piece.removeprefix("▁")) for piece in ordinary])
    facts = {
        "size": vocabulary.size,
        "ordinary_pieces": len(ordinary),
        "word_starts": int(vocabulary.is_word_start[vocabulary.first_ordinary_id :].sum()),
        "mean_length": round(float(lengths.mean()), 2),
        "longest": [readable(p) for p in sorted(ordinary, key=lambda p: (-len(p), p))[:5]],
        "first": [readable(p) for p in ordinary[:20]],
        "cleaning": asdict(vocabulary.cleaning),
    }
    lines = _pairs_of(facts, tuple(facts))
    if (directory / REPORT).is_file():
        facts["report"] = report = store.read_json(directory / REPORT)
        lines += statistics.lines(report) if "fewer_pieces" in report else []
    return facts, lines


def _describe_other(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """A run, a checkpoint, a task or a result: its step, its last metrics, its score."""
    facts: dict[str, Any] = {}
    if steps := store.saved_steps(directory):
        facts["checkpoints"] = [step.name for step in steps]
    for name in ("status.json", "state.json"):
        if (directory / name).is_file():
            facts[name.removesuffix(".json")] = store.read_json(directory / name)
    if (directory / "metrics.jsonl").is_file():
        records = store.read_journal(directory / "metrics.jsonl")
        for name, wanted in (("last_training", "loss"), ("last_evaluation", "eval")):
            facts[name] = next((r for r in reversed(records) if wanted in r), None)
    if (directory / "results.json").is_file():
        results = store.read_json(directory / "results.json")
        names = ("task", "metric", "score", "median", "spread", "majority", "seeds")
        facts["results"] = {name: results[name] for name in names if name in results}
    if (directory / "config.json").is_file():
        config = store.read_json(directory / "config.json")
        shape = ("model_type", "hidden_size", "embedding_size", "num_hidden_layers", "vocab_size")
        facts["model"] = {name: config[name] for name in shape if name in config}
    if not facts and not any((directory / name).is_file() for name in (store.MANIFEST, *_UNFINISHED)):
        raise InputError(f"{directory}: nothing to describe")
    return facts, _pairs_of(facts, tuple(facts)) if facts else []
