"""`albert quickstart`: the whole road in minutes, on the documentation installed on this machine.

It shows this program's own commands as it runs them: vocabulary, shards, a mini ALBERT, a task, a report. The task is
made of modules that pretraining never saw: which package does a sentence come from, when no package's name is left in
it? It is learnt from few labelled sentences and from many: from the pretrained weights and, as controls, from those
that pretraining started from and from random ones.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import nlargest
from itertools import islice
from pathlib import Path
from typing import Any

import typer

from albert_cli import console, machine, store
from albert_cli.cli.app import invoke
from albert_cli.errors import BusyError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.results import CONTROLS, join_words
from albert_cli.text.corpus import Document, read_documents
from albert_cli.text.sentences import split_sentences
from albert_cli.text.vocabulary import Vocabulary

_HIDDEN_NAME = "package"  # what stands where a package was named
_ALIASES = {"numpy": ["np"], "pandas": ["pd"], "matplotlib": ["plt", "mpl", "pyplot"], "networkx": ["nx"]}
_ALIASES |= {"sklearn": ["scikit-learn", "scikit", "skl"], "torch": ["pytorch"], "tkinter": ["tk", "tcl"]}
_NAMES = {
    "pretrained": "mini ALBERT, pretrained",
    "init": "same init, not pretrained",
    "random": "random weights",
    "bag_of_words": "bag of words",
    "majority": "majority class",
}


@dataclass(frozen=True)
class QuickstartScale:
    """How much of everything; the smoke scale is the same road on the standard library alone."""

    source: str
    vocabulary_size: int
    sample_size: int  # sentences that the vocabulary is trained on
    recipe: str
    max_time: str
    packages: int  # classes of the task
    heldout: float  # share of those packages' modules that pretraining does not see
    test_sentences: int
    epochs: dict[str, int]  # of fine-tuning, by the number of labelled sentences: fewer are seen more often
    runs: int = 3


FULL = QuickstartScale("docs:", 4000, 40_000, "mini/docs", "80s", 8, 0.25, 2_000, {"125": 16, "500": 8, "2000": 2})
SMOKE = QuickstartScale("docs:stdlib", 1500, 10_000, "mini/docs", "10s", 5, 0.5, 1_000, {"125": 4, "500": 2}, runs=2)


def run_quickstart(out: Path, *, smoke: bool = False, device: str = "auto") -> dict[str, Any]:
    """Walk the road into `out`; finished stages are not repeated. Returns what `--json` prints."""
    scale, started = SMOKE if smoke else FULL, time.monotonic()
    corpus, vocabulary, data, model, task = (
        out / name for name in ("corpus.jsonl", "vocabulary", "data", "pretrain", "task")
    )
    with store.lock(out):
        _require_same_scale(out, scale)
        facts = store.read_json(out / "text.json") if (out / "text.json").is_file() else _write_corpus(out, scale)
        sizes = ("--size", scale.vocabulary_size, "--sample-size", scale.sample_size)
        _run_command("vocab", corpus, "--out", vocabulary, *sizes)
        _run_command("data", corpus, "--vocab", vocabulary, "--out", data, "--holdout", 0.03)
        pretrained = _run_command(
            *("pretrain", scale.recipe, "--data", data, "--out", model, "--max-time", scale.max_time),
            *("-s", "train.eval_every=400", "--device", device),  # often enough for a curve
        )
        # Scored once, at the end: the test chooses nothing.
        evaluations = {
            count: _run_command(
                *("eval", "mini/table", "--checkpoint", model, "--data", task, "--out", out / "scores" / count),
                *("--runs", scale.runs, "--nproc", min(machine.available_cores(), 2), "--controls", ",".join(CONTROLS)),
                *("-s", 'table.title="which package?"', "-s", f"data.train_examples={count}"),
                *("-s", f"schedule.epochs={epochs}", "--device", device),
            )
            for count, epochs in scale.epochs.items()
        }
        examples = _fill_masks(out, device)
        report = out / "report.html"
        _run_command("report", out, "--out", report)
        scores = {count: _summarize_scores(evaluation) for count, evaluation in evaluations.items()}
        before = out / "quickstart.json"  # a repetition finds everything done; the first run's time is the time
        seconds = store.read_json(before)["seconds"] if before.is_file() else round(time.monotonic() - started, 1)
        others = (*CONTROLS, "bag_of_words")
        above = {name: all(of[name]["every_seed_above"] for of in scores.values()) for name in others}
        result = {
            "corpus": facts,
            "pretraining": pretrained,
            "task": scores,
            "every_pretrained_seed_above": above,
            "examples": examples,
            "report": str(report),
            "seconds": seconds,
        }
        store.write_json(before, result)
    return result


def _run_command(*arguments: object) -> dict[str, Any]:
    """Run a command of this program, show it, and return what its `--json` prints; ends as it does where it fails."""
    words = [str(argument) for argument in arguments]
    console.info(f"$ albert {textwrap.shorten(shlex.join(words), 240)}")
    code, printed = invoke([*words, "--json"])
    if code:
        raise typer.Exit(code)
    found: dict[str, Any] = json.loads(printed)
    return found


def _require_same_scale(out: Path, scale: QuickstartScale) -> None:
    """A directory belongs to one scale; the same command again goes on where it stopped."""
    path, asked = out / "scale.json", asdict(scale)
    if not path.is_file():
        if any(p.name != ".lock" for p in out.iterdir()):
            raise BusyError(f"{out}: holds something else", "choose another --out")
        store.write_json(path, asked)
    elif store.read_json(path) != asked:
        raise BusyError(f"{out}: holds a quickstart of another scale or version", "choose another --out or remove it")


# ---------------------------------------------------------------- the text, and the task


def _write_corpus(out: Path, scale: QuickstartScale) -> dict[str, Any]:
    """Write the corpus without the held-out modules, and the task's tables from these."""
    documents = list(read_documents([scale.source]))
    sizes: dict[str, list[int]] = defaultdict(list)
    for d in documents:
        sizes[_package(d)].append(len(d.text))
    several = [name for name, of in sizes.items() if len(of) >= 8]
    names = sorted(nlargest(scale.packages, several, key=lambda name: sum(sizes[name])))
    heldout = [
        d for d in documents if _package(d) in names and hash_to_unit_interval(f"held out {d.name}") < scale.heldout
    ]
    hidden = {d.name for d in heldout}
    with store.open_text_writer(out / "corpus.jsonl") as stream:
        for d in documents:
            if d.name not in hidden:
                stream.write(json.dumps({"id": d.name, "text": d.text}, ensure_ascii=False) + "\n")
    tables = _build_task_tables(heldout, names, scale)
    for split, rows in tables.items():
        with store.open_text_writer(out / "task" / f"{split}.csv") as stream:
            csv.writer(stream, lineterminator="\n").writerows([("text", "label"), *rows])
    facts: dict[str, Any] = {
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


def _package(document: Document) -> str:
    return document.name.split(".", 1)[0]


def _build_task_tables(
    heldout: Sequence[Document], names: Sequence[str], scale: QuickstartScale
) -> dict[str, list[tuple[str, str]]]:
    """(sentence, package) rows for training and test, from different modules, as balanced as possible."""
    words = sorted({w for n in names for w in (n, *_ALIASES.get(n, []))}, key=len, reverse=True)
    # A package's name, its alias, and dotted paths below either.
    named = re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b(?:\.\w+)*", re.IGNORECASE)
    wanted = {"train": max(map(int, scale.epochs)), "dev": scale.test_sentences}
    seen: set[str] = set()
    pools: dict[str, dict[str, list[str]]] = {split: {name: [] for name in names} for split in wanted}
    for d in heldout:
        split = "train" if hash_to_unit_interval(f"train {d.name}") < wanted["train"] / sum(wanted.values()) else "dev"
        for sentence in split_sentences(d.text):
            masked = named.sub(_HIDDEN_NAME, sentence)
            if 5 <= len(masked.split()) <= 40 and masked not in seen:
                seen.add(masked)
                pools[split][_package(d)].append(masked)
    tables = {}
    for split, by_name in pools.items():
        sizes = list(map(len, by_name.values()))
        # The cap on each class with which all together give as many as are wanted.
        each = next((n for n in range(max(sizes)) if sum(min(size, n) for size in sizes) >= wanted[split]), max(sizes))
        rows = []
        for name, pool in by_name.items():
            rows += [(s, name) for s in sorted(pool, key=lambda s: hash_to_unit_interval(f"{split} {s}"))[:each]]
        tables[split] = sorted(rows, key=lambda row: hash_to_unit_interval(f"order {row[0]}"))
    return tables


# ---------------------------------------------------------------- what it learnt


def _fill_masks(out: Path, device: str) -> list[dict[str, Any]]:
    """Mask a word in sentences that pretraining never saw, and note what the model puts there."""
    with (out / "task" / "dev.csv").open(encoding="utf-8", newline="") as stream:
        sentences = [row["text"] for row in csv.DictReader(stream)]
    chosen = list(islice(_mask_one_word(sentences, Vocabulary.load(out / "vocabulary")), 12))
    found = (
        _run_command("fill-mask", out / "pretrain", *(text for text, _ in chosen), "--device", device) if chosen else {}
    )
    rows = []
    for (text, word), filled in zip(chosen, found.get("texts", []), strict=True):
        guesses = ", ".join(f"{guess['text']} {guess['probability']:.0%}" for guess in filled["masks"][0])
        rows.append({"sentence": text, "word": word.lower(), "guesses": guesses})
    title = "Masked words in sentences that pretraining did not see"
    store.write_json(out / "examples.json", {"title": title, "rows": rows})
    return rows


def _mask_one_word(sentences: Sequence[str], vocabulary: Vocabulary) -> Iterator[tuple[str, str]]:
    """Sentences with one word masked, and the word: a single token, so that one guess can be right."""
    for sentence in sentences:
        words = sentence.split()
        place = int(hash_to_unit_interval(f"mask {sentence}") * len(words))
        word = words[place]
        if word.isalpha() and len(vocabulary.encode(word)) == 1 and 8 <= len(words) <= 16:
            yield " ".join([*words[:place], "[MASK]", *words[place + 1 :]]), word


def _summarize_scores(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """A result's scores beside those of its controls and of the bag of words, each with whether all seeds are above."""
    kept = ("median", "spread", "scores_by_seed", "every_seed_above")
    found = {"pretrained": evaluation, **evaluation["controls"]}
    bag = evaluation["baselines"]["words"]["accuracy"]
    return {
        **{name: {key: of[key] for key in kept if key in of} for name, of in found.items()},
        "bag_of_words": {"median": bag, "every_seed_above": min(evaluation["scores_by_seed"].values()) > bag},
        "majority": {"median": evaluation["majority"]},
    }


def format_summary(result: Mapping[str, Any]) -> str:
    """The closing words: how far pretraining came, the table of the task, some guesses."""
    p, task = result["pretraining"], result["task"]
    headers = ("labelled sentences", *(f"{int(count):,}" for count in task))
    rows = [(name, *(_cell(of[key]) for of in task.values())) for key, name in _NAMES.items()]
    verdicts: dict[str, list[str]] = defaultdict(list)
    for count, of in task.items():
        below = ", ".join(name for key, name in _NAMES.items() if of[key].get("every_seed_above")) or "none of them"
        verdicts[below].append(f"{int(count):,}")
    return "\n".join(
        [
            f"held-out masked-word loss {p['mlm_loss']:.3f} nats, unigram entropy {p['unigram_entropy']:.3f} "
            f"({p['below_unigram_entropy']:+.3f} below)",
            "",
            "which package is a sentence from? accuracy, the median and every seed",
            console.format_table(headers, rows),
            *(
                f"with {join_words(counts)} sentences every pretrained seed is above: {below}"
                for below, counts in verdicts.items()
            ),
            "",
            "masked words in sentences that pretraining did not see:",
            *(f"  {r['sentence']}\n    {r['word']}: {r['guesses']}" for r in result["examples"][:4]),
            "",
            f"report: {result['report']}  ({console.format_duration(result['seconds'])})",
        ]
    )


def _cell(scores: Mapping[str, Any]) -> str:
    if scores["median"] is None:
        return "diverged"
    seeds = " ".join(f"{100 * score:.1f}" for score in scores.get("scores_by_seed", {}).values())
    return f"{100 * scores['median']:.1f}" + (f" ({seeds})" if seeds else "")
