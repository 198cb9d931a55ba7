"""`albert inspect`: statistics of a directory, decoded examples, and whether its bytes are intact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from albert_cli import console, store
from albert_cli.data.batches import PackedBatch, PairSettings, batch, original_ids, pack
from albert_cli.data.masking import VocabularyFacts, ngram_probabilities, select_spans
from albert_cli.data.pairs import draw_pairs, examples_per_pass
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import CheckpointError, InputError

_SAMPLE = 512  # sequences that the statistics of a data directory are measured on
_LABELS = {"sop": ("in order", "swapped"), "nsp": ("next", "from another document"), "none": ("", "")}


def describe(
    directory: Path,
    examples: int = 0,
    seed: int = 0,
    step: int = 0,
    verify: bool = False,
    settings: PairSettings | None = None,
    batch_size: int = 32,
) -> tuple[dict[str, Any], str]:
    """What `directory` holds, as a mapping and as text.

    examples: how many training examples to decode, from the first of `step` at `batch_size` on, for a data
    directory; verify: re-hash every file that a manifest below names. Raises `CheckpointError` when there is
    nothing to describe or a file is damaged.
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
        more, lines = _describe_data(directory, examples, seed, (step, batch_size), settings or PairSettings())
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
    if (directory / "plan.json").is_file():
        return "unfinished data"
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
    directory: Path, examples: int, seed: int, place: tuple[int, int], settings: PairSettings
) -> tuple[dict[str, Any], list[str]]:
    from albert_cli.text.vocabulary import Vocabulary

    data = store.read_json(directory / "data.json")
    vocabulary = Vocabulary.load(directory / "vocabulary")
    corpus = TokenCorpus.open(directory, "train")
    drawn = sample_statistics(corpus, vocabulary, settings, seed)
    names = (
        "totals",
        "vocab_size",
        "dtype",
        "bytes_read",
        "unigram_entropy_nats",
        "heldout_own_entropy_nats",
    )
    facts: dict[str, Any] = {name: data[name] for name in names} | {"sample": drawn}
    rows = [[split, *(f"{n:,}" for n in counts.values())] for split, counts in data["totals"].items()]
    lines = [console.table(["split", "documents", "sentences", "pieces"], rows)]
    lines += _pairs_of(facts, names[1:])
    lines += [f"{drawn['sequences']} sequences of at most {settings.max_seq_length} positions, seed {seed}:"]
    lines += _pairs_of(drawn, tuple(drawn))
    if examples > 0:
        step, batch_size = place
        index = step * batch_size + np.arange(examples, dtype=np.int64)
        lines += ["", f"from step {step}, {batch_size} sequences a step, seed {seed}:"]
        drawn_batch = batch(corpus, vocabulary, settings, seed, index)
        facts |= {"step": step, "batch_size": batch_size, "seed": seed}
        facts["examples"] = decode(drawn_batch, vocabulary.pieces, index.tolist())
        for example in facts["examples"]:
            lines += ["", *_show(example, settings)]
    return facts, lines


def sample_statistics(
    corpus: TokenCorpus,
    vocabulary: VocabularyFacts,
    settings: PairSettings,
    seed: int,
    sequences: int = _SAMPLE,
) -> dict[str, Any]:
    """How sequences come out: fill, mask rate, n-gram shares beside p(n), label balance, shorter and
    one-segment share.

    ngram_share counts the spans that were neither shortened to fit the budget nor by the end of their
    segment.
    """
    index = np.arange(sequences, dtype=np.int64)
    pairs = draw_pairs(corpus, index, settings, seed)
    ids, special, _, offsets = pack(corpus, pairs, vocabulary.cls_id, vocabulary.sep_id)
    spans = select_spans(ids, special, offsets, vocabulary, settings, seed, index)
    words = np.bincount(spans.words[~spans.shortened], minlength=settings.ngram + 1)[1:]
    labelled = pairs.order_labels[pairs.order_labels >= 0]
    length = np.diff(offsets)
    return {
        "sequences": sequences,
        "examples_per_pass": examples_per_pass(corpus.tokens, settings.max_seq_length),
        "fill": round(float(length.mean()) / settings.max_seq_length, 4),
        "full_share": round(float((length == settings.max_seq_length).mean()), 4),
        "one_segment_share": round(float((pairs.b_stop == pairs.b_start).mean()), 4),
        "label_1_share": round(float(labelled.mean()), 4) if labelled.size else None,
        "mask_rate": round(float((spans.stop - spans.start).sum()) / ids.size, 4),
        "pieces_per_span": round(float((spans.stop - spans.start).mean()), 3) if spans.start.size else None,
        "ngram_share": [round(float(n), 4) for n in words / max(int(words.sum()), 1)],
        "ngram_expected": [round(float(p), 4) for p in ngram_probabilities(settings)],
        "unknown_share": round(float((ids == getattr(vocabulary, "unk_id", -1)).mean()), 6),
    }


def decode(packed: PackedBatch, pieces: Sequence[str], index: Sequence[int]) -> list[dict[str, Any]]:
    """Each sequence as text: its segments as lists of (text, what the model sees, or None where nothing is
    masked)."""
    ids, original = packed.ids.tolist(), original_ids(packed).tolist()
    masked = np.zeros(len(ids), bool)
    masked[packed.masked_index] = True
    decoded = []
    for number, (start, stop) in enumerate(zip(packed.offsets[:-1], packed.offsets[1:], strict=True)):
        segments: list[list[tuple[str, str | None]]] = [[], []]
        for position in range(int(start) + 1, int(stop)):
            if original[position] != original[int(stop) - 1] or masked[position]:  # every [SEP] ends a segment
                run = segments[int(packed.segment_ids[position])]
                text = _readable(pieces[original[position]])
                seen = _readable(pieces[ids[position]]) if masked[position] else None
                if run and (run[-1][1] is None) == (seen is None):
                    text, seen = run[-1][0] + text, None if seen is None else str(run[-1][1]) + seen
                    run.pop()
                run.append((text, seen))
        label = int(packed.order_labels[number])
        size = int(stop - start)
        decoded.append({"index": index[number], "positions": size, "order_label": label, "segments": segments})
    return decoded


def _readable(piece: str) -> str:
    """A piece as text: spaces for word marks, nothing that a terminal would obey."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in piece.replace("▁", " "))


def _show(example: dict[str, Any], settings: PairSettings) -> list[str]:
    """One decoded example for a person: what is masked stands in brackets, and in colour on a terminal."""
    colour = console.has_colour()
    label = example["order_label"]
    meaning = f"label {label}: {_LABELS[settings.sentence_loss][label]}" if label >= 0 else "no order label"
    lines = [f"example {example['index']}: {example['positions']} positions, {meaning}"]
    for name, segment in zip("AB", example["segments"], strict=True):
        if segment:
            text = "".join(piece if seen is None else _marked(piece, colour) for piece, seen in segment)
            lines.append(f"  {name}: {text.strip()}")
    return lines


def _marked(text: str, colour: bool) -> str:
    space = " " * (len(text) - len(text.lstrip(" ")))
    if not colour:
        return f"{space}[{text.lstrip(' ')}]"
    from rich.style import Style

    return space + Style(color="black", bgcolor="yellow").render(text.lstrip(" "))


# ---------------------------------------------------------------- everything else


def _describe_vocabulary(directory: Path) -> tuple[dict[str, Any], list[str]]:
    from dataclasses import asdict

    from albert_cli.text.vocabulary import Vocabulary

    vocabulary = Vocabulary.load(directory)
    ordinary = vocabulary.pieces[vocabulary.first_ordinary_id :]
    lengths = np.array([len(piece.removeprefix("▁")) for piece in ordinary])
    facts = {
        "size": vocabulary.size,
        "ordinary_pieces": len(ordinary),
        "word_starts": int(vocabulary.is_word_start[vocabulary.first_ordinary_id :].sum()),
        "mean_length": round(float(lengths.mean()), 2),
        "longest": [_readable(p) for p in sorted(ordinary, key=lambda p: (-len(p), p))[:5]],
        "first": [_readable(p) for p in ordinary[:20]],
        "cleaning": asdict(vocabulary.cleaning),
    }
    return facts, _pairs_of(facts, tuple(facts))


def _describe_other(directory: Path) -> tuple[dict[str, Any], list[str]]:
    """A run, a checkpoint, a task or a result: its step, its last metrics, its score."""
    facts: dict[str, Any] = {}
    steps = sorted(p.name for p in directory.glob("step-*") if (p / store.MANIFEST).is_file())
    if steps:
        facts["checkpoints"] = steps
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
    if not facts and not (directory / store.MANIFEST).is_file():
        raise InputError(f"{directory}: nothing to describe")
    return facts, _pairs_of(facts, tuple(facts)) if facts else []
