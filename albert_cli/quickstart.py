"""`albert quickstart`: the whole road in minutes, on the documentation installed on this machine.

Documentation -> vocabulary -> shards -> a mini ALBERT -> a task -> a report. The task is made of modules that
pretraining never saw: which package does a sentence come from, when no package's name is left in it? It is
learnt from few labelled sentences and from many: from the pretrained weights and, as controls, from those that
pretraining started from and from random ones.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from albert_cli import console, machine, store
from albert_cli.errors import BusyError
from albert_cli.text.corpus import Document, read_documents
from albert_cli.text.sentences import split_sentences

MASK_NAME = "package"  # what stands where a package was named
CONTROLS = ("start", "random")
PRETRAINED, BAG = "pretrained", "bag_of_words"
NAMES = {
    PRETRAINED: "mini ALBERT, pretrained",
    "start": "same start, not pretrained",
    "random": "random weights",
    BAG: "bag of words",
    "majority": "majority class",
}


@dataclass(frozen=True)
class Scale:
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

    @property
    def train_sentences(self) -> int:
        """The most labelled sentences that a model learns from."""
        return max(map(int, self.epochs))


FULL = Scale("docs:", 4000, 40_000, "mini/docs", "2m", 8, 0.25, 2_000, {"125": 32, "500": 16, "2000": 8})
SMOKE = Scale("docs:stdlib", 1500, 10_000, "mini/docs", "10s", 5, 0.5, 1_000, {"125": 4, "500": 2}, runs=2)


def run(out: Path, *, smoke: bool = False, device: str = "auto") -> dict[str, Any]:
    """Walk the road into `out`; finished stages are not repeated. Returns what `--json` prints."""
    scale, started = SMOKE if smoke else FULL, time.monotonic()
    with store.lock(out):
        _refuse_other_scale(out, scale)
        _stage(1, f"text: {scale.source}, and a task cut from modules that pretraining does not see")
        facts = _make_text(out, scale)
        _stage(2, f"vocabulary of {scale.vocabulary_size:,} pieces, and token shards")
        _make_data(out, scale)
        _stage(3, f"pretraining {scale.recipe} for {scale.max_time}")
        pretrained = _pretrain(out, scale, device)
        counts = ", ".join(f"{int(count):,}" for count in scale.epochs)
        _stage(4, f"fine-tuning on {counts} sentences, {scale.runs} seeds each: pretrained, same start, random weights")
        evaluations = _fine_tune(out, scale, device)
        _stage(5, "what it learnt, and the report")
        examples = _fill_masks(out)
        result = _result(out, facts, pretrained, evaluations, examples)
        before = out / "quickstart.json"  # a repetition finds everything done; the first run's time is the time
        result["seconds"] = (
            store.read_json(before)["seconds"] if before.is_file() else round(time.monotonic() - started, 1)
        )
        store.write_json(before, result)
    return result


def _stage(number: int, what: str) -> None:
    console.note(f"[{number}/5] {what}")


def _refuse_other_scale(out: Path, scale: Scale) -> None:
    """A directory belongs to one scale; the same command again goes on where it stopped."""
    path, asked = out / "scale.json", asdict(scale)
    if not path.is_file():
        if any(p.name != ".lock" for p in out.iterdir()):
            raise BusyError(f"{out}: holds something else", "choose another --out or remove it")
        store.write_json(path, asked)
    elif store.read_json(path) != asked:
        raise BusyError(f"{out}: holds a quickstart of another scale or version", "choose another --out or remove it")


# ---------------------------------------------------------------- 1: text


def _make_text(out: Path, scale: Scale) -> dict[str, Any]:
    """Write the corpus without the held-out modules, and the task's tables from these."""
    if (out / "text.json").is_file():
        return store.read_json(out / "text.json")
    documents = list(read_documents([scale.source]))
    names = _largest_packages(documents, scale.packages)
    heldout = [d for d in documents if _package(d) in names and _share(d.name, "held out") < scale.heldout]
    hidden = {d.name for d in heldout}
    with store.text_writer(out / "corpus.jsonl") as stream:
        for d in documents:
            if d.name not in hidden:
                stream.write(json.dumps({"id": d.name, "text": d.text}, ensure_ascii=False) + "\n")
    tables = _tables(heldout, names, scale)
    for split, rows in tables.items():
        _write_table(out / "task" / f"{split}.csv", rows)
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
    console.note(
        f"{facts['characters'] / 1e6:.1f} MB in {len(documents):,} modules, fingerprint {facts['sha256'][:16]}; "
        f"task: {len(tables['train']):,} training and {len(tables['dev']):,} test sentences of {', '.join(names)}"
    )
    return facts


def _package(document: Document) -> str:
    return document.name.split(".", 1)[0]


def _largest_packages(documents: Sequence[Document], count: int) -> list[str]:
    """The packages of several modules with the most text, by name."""
    size: dict[str, int] = defaultdict(int)
    modules: dict[str, int] = defaultdict(int)
    for d in documents:
        size[_package(d)] += len(d.text)
        modules[_package(d)] += 1
    split = [name for name in size if modules[name] >= 8]
    return sorted(sorted(split, key=lambda name: -size[name])[:count])


def _share(name: str, purpose: str) -> float:
    """A number in [0, 1) that depends on the name alone, so that the split is the same on every machine."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {name}".encode()).digest()[:8], "big") / 2**64


def _tables(heldout: Sequence[Document], names: Sequence[str], scale: Scale) -> dict[str, list[tuple[str, str]]]:
    """(sentence, package) rows for training and test, from different modules, as even over the classes as may be."""
    pattern = _names_pattern(names)
    seen: set[str] = set()
    pools: dict[str, dict[str, list[str]]] = {s: {n: [] for n in names} for s in ("train", "dev")}
    share = scale.train_sentences / (scale.train_sentences + scale.test_sentences)
    for d in heldout:
        pool = pools["train" if _share(d.name, "train") < share else "dev"][_package(d)]
        for sentence in split_sentences(d.text):
            masked = pattern.sub(MASK_NAME, sentence)
            if 5 <= len(masked.split()) <= 40 and masked not in seen:
                seen.add(masked)
                pool.append(masked)
    wanted = {"train": scale.train_sentences, "dev": scale.test_sentences}
    tables = {}
    for split, by_name in pools.items():
        each = _even(sorted(len(p) for p in by_name.values()), wanted[split])
        rows = [
            (s, name) for name, pool in by_name.items() for s in sorted(pool, key=lambda s: _share(s, split))[:each]
        ]
        tables[split] = sorted(rows, key=lambda row: _share(row[0], "order"))
    return tables


def _even(sizes: Sequence[int], wanted: int) -> int:
    """The most a class may give so that the classes together give about `wanted`; `sizes` ascend."""
    for number, size in enumerate(sizes):
        rest = wanted - sum(sizes[:number])
        if size * (len(sizes) - number) >= rest:
            return -(-rest // (len(sizes) - number))
    return sizes[-1]


def _names_pattern(names: Sequence[str]) -> re.Pattern[str]:
    """What names a package in its own documentation: its name, its alias, and dotted paths below either."""
    aliases = {"numpy": ["np"], "pandas": ["pd"], "matplotlib": ["plt", "mpl", "pyplot"], "networkx": ["nx"]}
    aliases |= {"sklearn": ["scikit-learn", "scikit", "skl"], "torch": ["pytorch"], "tkinter": ["tk", "tcl"]}
    words = sorted({w for n in names for w in (n, *aliases.get(n, []))}, key=len, reverse=True)
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b(?:\.\w+)*", re.IGNORECASE)


def _write_table(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("text", "label"))
    writer.writerows(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(path, text.getvalue())


# ---------------------------------------------------------------- 2 and 3: vocabulary, data, pretraining


def _make_data(out: Path, scale: Scale) -> None:
    from albert_cli.data import build, merge
    from albert_cli.data.tokenise import BuildSettings
    from albert_cli.text import build_vocabulary

    corpus = [str(out / "corpus.jsonl")]
    settings = build_vocabulary.VocabularySettings(scale.vocabulary_size, sample_size=scale.sample_size)
    build_vocabulary.build(corpus, out / "vocabulary", settings)
    facts = build.build(corpus, out / "vocabulary", out / "data", BuildSettings(holdout=0.03))
    console.note(merge.summary(facts))


def _pretrain(out: Path, scale: Scale, device: str) -> dict[str, Any]:
    from albert_cli.training.pretrain import pretrain, summary_text

    often = ["train.eval_every=400"]  # enough for a curve
    result = pretrain(scale.recipe, out / "data", out / "pretrain", often, max_time=scale.max_time, device=device)
    console.note(summary_text(result))
    return result


# ---------------------------------------------------------------- 4: the task


def _fine_tune(out: Path, scale: Scale, device: str) -> dict[str, dict[str, Any]]:
    """The task's result from each number of labelled sentences, scored once at the end: the test chooses nothing."""
    from albert_cli.evaluation.runs import evaluate

    found = {}
    for count, epochs in scale.epochs.items():
        overrides = ['table.title="which package?"', f"data.train_examples={count}", f"schedule.epochs={epochs}"]
        start, task, scores = str(out / "pretrain"), str(out / "task"), out / "scores" / count
        found[count] = evaluate(
            "mini/table", start, task, scores, scale.runs, overrides, device,
            nproc=min(machine.cores(), 2), controlled=CONTROLS,
        )  # fmt: skip
    return found


# ---------------------------------------------------------------- 5: what it learnt


def _fill_masks(out: Path) -> list[dict[str, Any]]:
    """Mask a word in sentences that pretraining never saw, and note what the model puts there."""
    from albert_cli.evaluation.fill_mask import MASK, MaskFiller

    filler = MaskFiller.load(str(out / "pretrain"))
    rows = []
    with (out / "task" / "dev.csv").open(encoding="utf-8", newline="") as stream:
        sentences = [row["text"] for row in csv.DictReader(stream)]
    for sentence in sentences:
        words = sentence.split()
        place = int(_share(sentence, "mask") * len(words))
        word = words[place]
        # A single ordinary piece, so that one guess can be right.
        if not word.isalpha() or len(filler.vocabulary.encode(word)) != 1 or not 8 <= len(words) <= 16:
            continue
        text = " ".join([*words[:place], MASK, *words[place + 1 :]])
        guesses = [f"{guess.text} {guess.probability:.0%}" for guess in filler.fill(text)[0]]
        rows.append({"sentence": text, "word": word.lower(), "guesses": ", ".join(guesses)})
        if len(rows) == 12:
            break
    title = "Masked words in sentences that pretraining did not see"
    store.write_json(out / "examples.json", {"title": title, "rows": rows})
    return rows


def _result(
    out: Path,
    text_facts: Mapping[str, Any],
    pretrained: Mapping[str, Any],
    evaluations: Mapping[str, Mapping[str, Any]],
    examples: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The numbers of the run, and its report."""
    from albert_cli.report.build import build

    report = out / "report.html"
    build([out], report)
    task = {count: _compared(e) for count, e in evaluations.items()}
    return {
        "corpus": dict(text_facts),
        "pretraining": dict(pretrained),
        "task": task,
        "every_pretrained_seed_above": {
            name: all(of[name]["every_seed_above"] for of in task.values()) for name in (*CONTROLS, BAG)
        },
        "examples": list(examples),
        "report": str(report),
    }


def _compared(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    """A result's scores beside those of its controls and of the bag of words, each with whether all seeds are above."""
    from albert_cli.evaluation.baselines import WORDS

    kept = ("median", "spread", "scores_by_seed", "every_seed_above")
    found = {PRETRAINED: evaluation, **evaluation["controls"]}
    bag = evaluation["baselines"][WORDS]["accuracy"]
    return {
        **{name: {key: of[key] for key in kept if key in of} for name, of in found.items()},
        BAG: {"median": bag, "every_seed_above": min(evaluation["scores_by_seed"].values()) > bag},
        "majority": {"median": evaluation["majority"]},
    }


def text(result: Mapping[str, Any]) -> str:
    """The closing words: how far pretraining came, the table of the task, some guesses."""
    p, task = result["pretraining"], result["task"]
    headers = ("labelled sentences", *(f"{int(count):,}" for count in task))
    rows = [(said, *(_cell(of[name]) for of in task.values())) for name, said in NAMES.items()]
    guesses = [f"  {r['sentence']}\n    {r['word']}: {r['guesses']}" for r in result["examples"][:4]]
    return "\n".join(
        [
            f"held-out masked-word loss {p['mlm_loss']:.3f} nats, unigram entropy {p['unigram_entropy']:.3f} "
            f"({p['below_unigram_entropy']:+.3f} below)",
            "",
            "which package is a sentence from? accuracy, the median and every seed",
            console.table(headers, rows),
            *_verdicts(task),
            "",
            "masked words in sentences that pretraining did not see:",
            *guesses,
            "",
            f"report: {result['report']}  ({console.duration(result['seconds'])})",
        ]
    )


def _cell(scores: Mapping[str, Any]) -> str:
    seeds = " ".join(f"{100 * score:.1f}" for score in scores.get("scores_by_seed", {}).values())
    return f"{100 * scores['median']:.1f}" + (f" ({seeds})" if seeds else "")


def _verdicts(task: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What every pretrained seed is above, all seeds of it, by the number of labelled sentences."""
    from albert_cli.results import listed

    counts: dict[str, list[str]] = {}
    for count, of in task.items():
        below = [said for name, said in NAMES.items() if of[name].get("every_seed_above")]
        counts.setdefault(", ".join(below) or "none of them", []).append(f"{int(count):,}")
    return [f"with {listed(of)} sentences every pretrained seed is above: {below}" for below, of in counts.items()]
