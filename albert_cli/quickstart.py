"""`albert quickstart`: run the full pipeline on the documentation that is installed on this machine.

It prints and runs albert's own commands: vocabulary, shards, a mini ALBERT, a task, a report. The task comes from
modules that are excluded from pretraining: which package is a sentence from, with package names masked? It is trained
on few and on many labeled sentences: from the pretrained weights and, as controls, from the weights at step 0 and from
random weights.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
import shlex
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import Any

from albert_cli import console, machine, store
from albert_cli.errors import BusyError
from albert_cli.formatting import join_words
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.results import CONTROLS, best_baseline
from albert_cli.text.corpus import Document, read_documents
from albert_cli.text.sentences import split_sentences
from albert_cli.text.vocabulary import Vocabulary

JsonObject = dict[str, Any]  # as a command prints it under `--json`
InvokeJson = Callable[[Sequence[str]], JsonObject]
TaskRow = tuple[str, str]  # sentence, package

_MASKED_NAME = "package"  # replaces every package name
_ALIASES = {
    "numpy": ["np"],
    "pandas": ["pd"],
    "matplotlib": ["plt", "mpl", "pyplot"],
    "networkx": ["nx"],
    "sklearn": ["scikit-learn", "scikit", "skl"],
    "torch": ["pytorch"],
    "tkinter": ["tk", "tcl"],
}
_MODEL_TITLES = {
    "pretrained": "mini ALBERT, pretrained",
    "init": "same init, not pretrained",
    "random": "random weights",
    "classical": "classical baseline",
    "majority": "majority class",
}
_MIN_MODULES = 8  # of a package that becomes a class of the task
_MASKED_EXAMPLES = 12
_SHOWN_EXAMPLES = 4


@dataclass(frozen=True)
class QuickstartScale:
    """The size of every step; the smoke scale runs the same steps on the standard library alone."""

    source: str
    vocabulary_size: int
    sample_size: int  # sentences that the vocabulary is trained on
    recipe: str
    max_time: str
    packages: int  # classes of the task
    heldout: float  # fraction of these packages' modules that is excluded from pretraining
    test_sentences: int
    epochs: dict[str, int]  # of fine-tuning, by the number of labeled sentences: smaller sets are repeated more often
    runs: int = 3


FULL = QuickstartScale("docs:", 4000, 40_000, "mini/docs", "80s", 8, 0.25, 2_000, {"125": 16, "500": 8, "2000": 2})
SMOKE = QuickstartScale("docs:stdlib", 1500, 10_000, "mini/docs", "10s", 5, 0.5, 1_000, {"125": 4, "500": 2}, runs=2)


class _Commands:
    """Albert's own commands, printed and run in this process."""

    def __init__(self, invoke: InvokeJson) -> None:
        self._invoke = invoke

    def run(self, *arguments: object) -> JsonObject:
        """Print and run a command; return what its `--json` prints."""
        words = [str(argument) for argument in arguments]
        console.info(f"$ albert {textwrap.shorten(shlex.join(words), 240)}")
        return self._invoke([*words, "--json"])


def run_quickstart(out: Path, invoke: InvokeJson, *, smoke: bool = False, device: str = "auto") -> JsonObject:
    """Run all steps in `out`, without repeating finished ones; return what `--json` prints.

    invoke: runs an `albert` command and returns its JSON; raises if the command fails.
    """
    scale = SMOKE if smoke else FULL
    started = time.monotonic()
    commands = _Commands(invoke)
    report = out / "report.html"
    with store.lock(out):
        _require_same_scale(out, scale)
        corpus_facts = _load_or_write_corpus(out, scale)
        pretraining = _pretrain(commands, out, scale, device)
        evaluations = {count: _evaluate(commands, out, scale, count, device) for count in scale.epochs}
        examples = _fill_masks(commands, out, device)
        commands.run("report", out, "--out", report)
        scores = {count: _summarize_scores(evaluation) for count, evaluation in evaluations.items()}
        result = {
            "corpus": corpus_facts,
            "pretraining": pretraining,
            "task": scores,
            "every_pretrained_seed_above": _above_at_every_count(scores),
            "examples": examples,
            "report": str(report),
            "seconds": _total_seconds(out, started),
        }
        store.write_json(out / "quickstart.json", result)
    return result


def _require_same_scale(out: Path, scale: QuickstartScale) -> None:
    """Record the scale in a new directory; raise `BusyError` if the directory has another scale or content."""
    path = out / "scale.json"
    if not path.is_file():
        if any(p.name != ".lock" for p in out.iterdir()):
            raise BusyError(f"{out}: contains something else", "choose another --out")
        store.write_json(path, asdict(scale))
    elif store.read_json(path) != asdict(scale):
        raise BusyError(
            f"{out}: contains a quickstart of another scale or version", "choose another --out or delete it"
        )


def _pretrain(commands: _Commands, out: Path, scale: QuickstartScale, device: str) -> JsonObject:
    corpus = out / "corpus.jsonl"
    vocabulary = out / "vocabulary"
    data = out / "data"
    sizes = ("--size", scale.vocabulary_size, "--sample-size", scale.sample_size)
    commands.run("vocab", corpus, "--out", vocabulary, *sizes)
    commands.run("data", corpus, "--vocab", vocabulary, "--out", data, "--holdout", 0.03)
    return commands.run(
        *("pretrain", scale.recipe, "--data", data, "--out", out / "pretrain", "--max-time", scale.max_time),
        *("-s", "train.eval_every=400", "--device", device),  # often enough to draw a curve
    )


def _evaluate(commands: _Commands, out: Path, scale: QuickstartScale, count: str, device: str) -> JsonObject:
    """Fine-tune and score once, at the end: the test sentences select nothing."""
    return commands.run(
        *("eval", "mini/table", "--checkpoint", out / "pretrain", "--data", out / "task"),
        *("--out", out / "scores" / count, "--runs", scale.runs),
        *("--nproc", min(machine.available_cores(), 2), "--controls", ",".join(CONTROLS)),
        *("-s", 'table.title="which package?"', "-s", f"data.train_examples={count}"),
        *("-s", f"schedule.epochs={scale.epochs[count]}", "--device", device),
    )


def _total_seconds(out: Path, started: float) -> float:
    """Return the first run's time: a repetition only finds everything done."""
    previous = out / "quickstart.json"
    if previous.is_file():
        return float(store.read_json(previous)["seconds"])
    return round(time.monotonic() - started, 1)


# ---------------------------------------------------------------- the corpus and the task


def _load_or_write_corpus(out: Path, scale: QuickstartScale) -> JsonObject:
    facts_file = out / "text.json"
    if facts_file.is_file():
        return store.read_json(facts_file)
    return _write_corpus(out, scale)


def _write_corpus(out: Path, scale: QuickstartScale) -> JsonObject:
    """Write the corpus without the held-out modules, and the task's tables from these modules."""
    documents = list(read_documents([scale.source]))
    names = _choose_packages(documents, scale.packages)
    heldout = [d for d in documents if _package(d) in names and _is_held_out(d, scale)]
    heldout_names = {d.name for d in heldout}
    with store.open_text_writer(out / "corpus.jsonl") as stream:
        for document in documents:
            if document.name not in heldout_names:
                line = json.dumps({"id": document.name, "text": document.text}, ensure_ascii=False)
                stream.write(line + "\n")
    tables = _build_task_tables(heldout, names, scale)
    for split, rows in tables.items():
        with store.open_text_writer(out / "task" / f"{split}.csv") as stream:
            csv.writer(stream, lineterminator="\n").writerows([("text", "label"), *rows])
    facts: JsonObject = {
        "source": scale.source,
        "documents": len(documents),
        "characters": sum(len(d.text) for d in documents),
        "sha256": hashlib.sha256("\0".join(d.text for d in documents).encode()).hexdigest(),
        "packages": names,
        "held_out_modules": len(heldout),
        **{f"{split}_sentences": len(rows) for split, rows in tables.items()},
    }
    store.write_json(out / "text.json", facts)
    console.info(
        f"{facts['characters'] / 1e6:.1f} MB in {len(documents):,} modules, fingerprint {facts['sha256'][:16]}; "
        f"task: {len(tables['train']):,} training and {len(tables['dev']):,} test sentences of {', '.join(names)}"
    )
    return facts


def _choose_packages(documents: Sequence[Document], count: int) -> list[str]:
    """Return the names of the packages with the most text, among packages with enough modules."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for document in documents:
        sizes[_package(document)].append(len(document.text))
    candidates = [name for name, module_sizes in sizes.items() if len(module_sizes) >= _MIN_MODULES]
    return sorted(nlargest(count, candidates, key=lambda name: sum(sizes[name])))


def _package(document: Document) -> str:
    return document.name.split(".", 1)[0]


def _is_held_out(document: Document, scale: QuickstartScale) -> bool:
    return hash_to_unit_interval(f"held out {document.name}") < scale.heldout


def _build_task_tables(
    heldout: Sequence[Document], names: Sequence[str], scale: QuickstartScale
) -> dict[str, list[TaskRow]]:
    """Return the rows for training and test, from different modules, with classes as balanced as possible."""
    sizes = {"train": max(map(int, scale.epochs)), "dev": scale.test_sentences}
    train_fraction = sizes["train"] / sum(sizes.values())
    name_pattern = _name_pattern(names)
    seen: set[str] = set()
    sentences: dict[str, dict[str, list[str]]] = {split: {name: [] for name in names} for split in sizes}
    for document in heldout:
        split = "train" if hash_to_unit_interval(f"train {document.name}") < train_fraction else "dev"
        for sentence in split_sentences(document.text):
            masked = name_pattern.sub(_MASKED_NAME, sentence)
            if 5 <= len(masked.split()) <= 40 and masked not in seen:
                seen.add(masked)
                sentences[split][_package(document)].append(masked)
    return {split: _balance_classes(split, by_name, sizes[split]) for split, by_name in sentences.items()}


def _name_pattern(names: Sequence[str]) -> re.Pattern[str]:
    """Match a package's name, its aliases, and dotted paths below either."""
    words = sorted({w for name in names for w in (name, *_ALIASES.get(name, []))}, key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b(?:\.\w+)*", re.IGNORECASE)


def _balance_classes(split: str, sentences: Mapping[str, Sequence[str]], size: int) -> list[TaskRow]:
    """Take at most `limit` sentences of each class, the smallest limit that gives `size` rows in all."""
    counts = [len(pool) for pool in sentences.values()]
    limit = next((n for n in range(max(counts)) if sum(min(count, n) for count in counts) >= size), max(counts))
    rows = []
    for name, pool in sentences.items():
        shuffled = sorted(pool, key=lambda sentence: hash_to_unit_interval(f"{split} {sentence}"))
        rows += [(sentence, name) for sentence in shuffled[:limit]]
    return sorted(rows, key=lambda row: hash_to_unit_interval(f"order {row[0]}"))


# ---------------------------------------------------------------- masked words and scores


def _fill_masks(commands: _Commands, out: Path, device: str) -> list[dict[str, str]]:
    """Mask a word in sentences that pretraining did not see, and record the model's guesses."""
    with (out / "task" / "dev.csv").open(encoding="utf-8", newline="") as stream:
        sentences = [row["text"] for row in csv.DictReader(stream)]
    chosen = list(islice(_mask_one_word(sentences, Vocabulary.load(out / "vocabulary")), _MASKED_EXAMPLES))
    texts = []
    if chosen:
        filled = commands.run("fill-mask", out / "pretrain", *(text for text, _ in chosen), "--device", device)
        texts = filled["texts"]
    rows = []
    for (text, word), filled_text in zip(chosen, texts, strict=True):
        guesses = [f"{guess['text']} {guess['probability']:.0%}" for guess in filled_text["masks"][0]]
        rows.append({"sentence": text, "word": word.lower(), "guesses": ", ".join(guesses)})
    title = "Masked words in sentences that pretraining did not see"
    store.write_json(out / "examples.json", {"title": title, "rows": rows})
    return rows


def _mask_one_word(sentences: Sequence[str], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Yield sentences with one word masked, and the word: a single token, so that one guess can be correct."""
    for sentence in sentences:
        words = sentence.split()
        index = int(hash_to_unit_interval(f"mask {sentence}") * len(words))
        word = words[index]
        if word.isalpha() and len(vocabulary.encode(word)) == 1 and 8 <= len(words) <= 16:
            yield " ".join([*words[:index], "[MASK]", *words[index + 1 :]]), word


def _summarize_scores(evaluation: Mapping[str, Any]) -> JsonObject:
    """Return the scores of the model, its controls and the baselines, each with whether all seeds are above it."""
    keys = ("median", "spread", "scores_by_seed", "every_seed_above")
    models = {"pretrained": evaluation, **evaluation["controls"]}
    _, classical = best_baseline(evaluation["baselines"], "accuracy") or ("", 0.0)
    lowest = min(evaluation["scores_by_seed"].values())
    return {
        **{name: {key: scores[key] for key in keys if key in scores} for name, scores in models.items()},
        "classical": {"median": classical, "every_seed_above": lowest > classical},
        "majority": {"median": evaluation["majority"]},
    }


def _above_at_every_count(scores: Mapping[str, JsonObject]) -> dict[str, bool]:
    """Return, by control and baseline, whether every pretrained seed is above it for every number of sentences."""
    return {
        name: all(by_model[name]["every_seed_above"] for by_model in scores.values())
        for name in (*CONTROLS, "classical")
    }


def format_summary(result: Mapping[str, Any]) -> str:
    """Return the closing text: the pretraining loss, the table of the task, some guesses."""
    pretraining = result["pretraining"]
    below = pretraining["below_unigram_entropy"]
    side = "above" if below >= 0 else "below"
    task = result["task"]
    headers = ("labeled sentences", *(f"{int(count):,}" for count in task))
    rows = [
        (title, *(_format_scores(by_model[name]) for by_model in task.values()))
        for name, title in _MODEL_TITLES.items()
    ]
    examples = [f"  {e['sentence']}\n    {e['word']}: {e['guesses']}" for e in result["examples"][:_SHOWN_EXAMPLES]]
    lines = [
        f"held-out MLM loss {pretraining['mlm_loss']:.3f} nats, unigram entropy "
        f"{pretraining['unigram_entropy']:.3f} ({abs(below):.3f} {side} the loss)",
        "",
        "which package is a sentence from? accuracy, the median and every seed",
        console.format_table(headers, rows),
        *_format_verdicts(task),
        "",
        "masked words in sentences that pretraining did not see:",
        *examples,
        "",
        f"report: {result['report']}  ({console.format_duration(result['seconds'])})",
    ]
    return "\n".join(lines)


def _format_verdicts(task: Mapping[str, JsonObject]) -> list[str]:
    """Return one line for all numbers of labeled sentences with the same verdict."""
    counts_by_verdict: dict[str, list[str]] = defaultdict(list)
    for count, by_model in task.items():
        below = [title for name, title in _MODEL_TITLES.items() if by_model[name].get("every_seed_above")]
        counts_by_verdict[", ".join(below) or "none of them"].append(f"{int(count):,}")
    return [
        f"with {join_words(counts)} sentences every pretrained seed is above: {below}"
        for below, counts in counts_by_verdict.items()
    ]


def _format_scores(scores: Mapping[str, Any]) -> str:
    if scores["median"] is None:
        return "diverged"
    median = f"{100 * scores['median']:.1f}"
    seeds = " ".join(f"{100 * score:.1f}" for score in scores.get("scores_by_seed", {}).values())
    return f"{median} ({seeds})" if seeds else median
