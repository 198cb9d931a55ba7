"""What lies in result directories, read into plain records for the report; nothing here computes or draws.

Files may come from anywhere, so that a value of the wrong type counts as absent and never as an error,
and every text is escaped by whoever shows it.
"""

from __future__ import annotations

import math
import os
import statistics
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.errors import AlbertError, InputError
from albert_cli.evaluation.baselines import best

CONTROLS = {"start": "same start", "random": "random weights"}  # `model.initial`, and what it is called
MAJORITY, CLASSICAL = "majority class", "classical baseline"
Record = Mapping[str, Any]
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Pretraining:
    """A pretraining run: its journal split into training and held-out lines, recipe, and checkpoints."""

    name: str
    path: Path
    training: Sequence[Record]
    heldout: Sequence[Record]  # {"step", **the evaluation's figures}
    recipe: Record
    status: Record
    unigram_entropy: float | None  # nats a token, of the held-out text
    checkpoints: Mapping[str, str]  # fingerprint -> "step 3,000"
    data: str = ""  # fingerprint of the data directory

    def setting(self, section: str, key: str) -> object:
        """A value of the recipe, or None."""
        return _at(self.recipe, section, key)

    @property
    def further(self) -> list[str]:
        """Names of the corpora that were scored beside the held-out text (`NAME/mlm_loss`)."""
        keys = dict.fromkeys(str(key) for row in self.heldout for key in row)
        return [key.removesuffix("/mlm_loss") for key in keys if key.endswith("/mlm_loss")]

    def series(self, key: str, heldout: bool = False) -> Points:
        """(step, value) wherever the journal has a finite value under `key`."""
        rows = self.heldout if heldout else self.training
        pairs = ((number(row.get("step")), number(row.get(key))) for row in rows)
        return [(step, value) for step, value in pairs if step is not None and value is not None]


@dataclass(frozen=True)
class Evaluation:
    """One model's scores on one task, one a seed, with the development curves of its runs."""

    task: str
    model: str
    metric: str
    scores: Mapping[str, float]  # seed -> score, 0..1
    baselines: Mapping[str, float]  # "majority class" first
    record: Record  # results.json
    curves: Mapping[str, Points]  # seed -> (step, score on dev)
    protocol: Mapping[str, str]
    path: Path
    folders: tuple[Path, ...] = ()  # of its runs, a seed each
    classical: str = ""  # which of the linear models is the best

    @property
    def median(self) -> float:
        """The median score, as the paper reports (§4.9)."""
        return statistics.median(self.scores.values())

    @property
    def spread(self) -> float:
        """Best minus worst score."""
        return max(self.scores.values()) - min(self.scores.values())

    @property
    def part(self) -> int:
        """How many of the training examples a run learnt from, drawn by its seed; 0 where it was all of them."""
        return int(number(self.record.get("train_examples")) or 0)

    @property
    def labelled(self) -> int:
        """How many labelled examples that was; 0 where it is not known."""
        return self.part or int(number(_at(self.record, "examples", "train")) or 0)

    @property
    def is_ensemble(self) -> bool:
        """Whether several models answered together, which were chosen on this very dev set."""
        return self.record.get("kind") == "ensemble"

    @property
    def control(self) -> int:
        """0 for a model; of a control how little it began with: 1 for the weights at step 0, 2 for random ones."""
        names = {str(self.record.get(key)) for key in ("initial", "checkpoint")}
        return next((rank for rank, name in enumerate(CONTROLS, start=1) if name in names), 0)


@dataclass(frozen=True)
class Examples:
    """A free table (`examples.json`), such as what a model fills into masked words."""

    title: str
    text: str
    rows: list[Any]
    columns: list[str]


@dataclass(frozen=True)
class Data:
    """A data directory."""

    name: str
    path: Path
    fingerprint: str
    totals: Mapping[str, Record]  # by split: documents, sentences, tokens


@dataclass
class Results:
    """Everything found below the given directories."""

    data: list[Data] = field(default_factory=list)
    pretraining: list[Pretraining] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    examples: list[Examples] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.data or self.pretraining or self.evaluations or self.examples)


def number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def collect(directories: Sequence[Path]) -> Results:
    """Walk down the directories and read every run, result and table of examples.

    Raises InputError for a directory that does not exist or when nothing is found in any of them.
    """
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: no such directory", "name the directories that the other verbs wrote")
    found = list(_walk(directories))
    results = Results()
    runs = [path for path in found if _is_pretraining(path)]
    data = [path for path in found if _is_data(path)]
    names = short_names([*runs, *data])
    results.data = [_read_data(path, names[path]) for path in data]
    entropies = _entropies(found)
    results.pretraining = [_read_pretraining(path, names[path], entropies) for path in runs]
    known = {mark: f"{run.name}, {step}" for run in results.pretraining for mark, step in run.checkpoints.items()}
    results.evaluations = _read_evaluations(found, known)
    for path in found:
        if (path / "examples.json").is_file():
            results.examples.append(_read_examples(path / "examples.json"))
    if not results:
        raise InputError(
            f"{', '.join(map(str, directories))}: no results here",
            "a result directory holds results.json, metrics.jsonl, examples.json or data.json",
        )
    return results


def _walk(directories: Sequence[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for start in directories:
        for folder, below, _ in os.walk(start):
            below[:] = sorted(name for name in below if not name.startswith((".", "step-")))
            path = Path(folder)
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """For each path as few of its last parts as tell it from the others."""
    parts = {path: path.resolve().parts for path in paths}
    names = {}
    for path, own in parts.items():
        others = [other for another, other in parts.items() if another != path]
        length = next((n for n in range(1, len(own)) if all(own[-n:] != other[-n:] for other in others)), 1)
        names[path] = "/".join(own[-length:])
    return names


# ---------------------------------------------------------------- data


def _is_data(path: Path) -> bool:
    """Whether a data directory is complete: shards and a manifest."""
    if not (path / "data.json").is_file() or not (path / "shards").is_dir():
        return False
    manifest = store.read_manifest(path)
    return manifest is not None and manifest.kind == "data"


def _read_data(path: Path, name: str) -> Data:
    totals = _mapping(_json(path / "data.json").get("totals"))
    return Data(name, path, store.fingerprint(path), {split: _mapping(counts) for split, counts in totals.items()})


# ---------------------------------------------------------------- pretraining


def _is_pretraining(path: Path) -> bool:
    if not (path / "metrics.jsonl").is_file() or (path / "results.json").exists():
        return False
    return any("mlm_loss" in {*row, *_mapping(row.get("eval"))} for row in _journal(path)[:200])


def _read_pretraining(path: Path, name: str, entropies: Mapping[str, float]) -> Pretraining:
    rows, status = _journal(path), _json(path / "status.json")
    heldout = [{**_mapping(row["eval"]), "step": row.get("step")} for row in rows if "eval" in row]
    checkpoints: dict[str, str] = {}
    parents: dict[str, str] = {}
    for step in sorted(path.glob("step-*")):
        with suppress(AlbertError, OSError):
            manifest = store.read_manifest(step)
            if manifest is not None:
                checkpoints[manifest.fingerprint()] = _step_name(step)
                parents |= manifest.parents
    said = [number(row.get(key)) for row in (status, *heldout) for key in ("unigram_entropy_nats", "unigram_entropy")]
    by_data = [entropy for mark, entropy in entropies.items() if mark in parents.values()]
    entropy = next((value for value in (*said, *by_data, *_only(entropies)) if value is not None), None)
    return Pretraining(
        name=name,
        path=path,
        training=[row for row in rows if "eval" not in row],
        heldout=heldout,
        recipe=_toml(path / "recipe.toml"),
        status=status,
        unigram_entropy=entropy,
        checkpoints=checkpoints,
        data=str(parents.get("data", "")),
    )


def _step_name(path: Path) -> str:
    digits = path.name.removeprefix("step-")
    return f"step {int(digits):,}" if digits.isdecimal() else path.name


def _entropies(found: Sequence[Path]) -> dict[str, float]:
    """Unigram entropy of every data directory found, by its fingerprint."""
    entropies = {}
    for path in found:
        entropy = number(_json(path / "data.json").get("unigram_entropy_nats"))
        if entropy is not None:
            with suppress(AlbertError, OSError):
                entropies[store.fingerprint(path)] = entropy
    return entropies


def _only(entropies: Mapping[str, float]) -> list[float]:
    return list(entropies.values()) if len(entropies) == 1 else []


# ---------------------------------------------------------------- tasks


def _read_evaluations(found: Sequence[Path], checkpoints: Mapping[str, str]) -> list[Evaluation]:
    """Every `eval` result, every ensemble, and every single task run that is not part of an evaluation."""
    records = {path: _json(path / "results.json") for path in found}
    evals = {path: record for path, record in records.items() if record.get("kind") == "eval"}
    runs = {
        path: record
        for path, record in records.items()
        if record.get("kind") in ("run", "ensemble") and not any(above in evals for above in path.parents)
    }
    evaluations = [_read_evaluation(path, record, checkpoints) for path, record in (evals | runs).items()]
    return [evaluation for evaluation in evaluations if evaluation is not None]


def _read_evaluation(path: Path, record: Record, checkpoints: Mapping[str, str]) -> Evaluation | None:
    scores = _numbers(record.get("scores_by_seed"))
    runs = {_seed_of(below): below for below in sorted(path.glob("run-*")) if below.is_dir()}
    if not scores and (score := number(record.get("score"))) is not None:
        scores = {str(record.get("seed", 0)): score}
        runs = {str(record.get("seed", 0)): path}
    if not scores:
        return None
    metric = str(record.get("metric", "score"))
    classical = best({str(name): _numbers(of) for name, of in _mapping(record.get("baselines")).items()}, metric)
    curves = {seed: _dev_curve(folder, metric) for seed, folder in runs.items() if seed in scores}
    return Evaluation(
        task=str(record.get("task", path.name)),
        model=_model_name(record, checkpoints),
        metric=metric,
        scores=scores,
        baselines=_baselines(record, classical),
        classical=classical[0] if classical else "",
        record=record,
        curves={seed: curve for seed, curve in curves.items() if len(curve) > 1},
        protocol=_protocol(record, next(iter(runs.values()), path)),
        path=path,
        folders=tuple(folder for seed, folder in runs.items() if seed in scores),
    )


def _baselines(record: Record, classical: tuple[str, float] | None) -> dict[str, float]:
    """The majority class, the best of the linear models, and those that a result names one by one."""
    majority = number(record.get("majority"))
    found = {MAJORITY: majority} if majority is not None else {}
    found |= {CLASSICAL: classical[1]} if classical else {}
    return found | _numbers(record.get("baselines"))


def _seed_of(path: Path) -> str:
    seed = _json(path / "results.json").get("seed")
    return str(seed) if seed is not None else path.name.removeprefix("run-")


def _model_name(record: Record, checkpoints: Mapping[str, str]) -> str:
    if record.get("label"):
        return str(record["label"])
    if record.get("kind") == "ensemble":
        chosen = record.get("chosen")
        return f"ensemble of {len(chosen)}" if isinstance(chosen, list) else "ensemble"
    checkpoint = str(record.get("checkpoint", ""))
    for name, control in CONTROLS.items():
        if name in (record.get("initial"), checkpoint):
            return control
    return checkpoints.get(checkpoint) or (f"checkpoint {checkpoint[-16:][:8]}" if checkpoint else "model")


def _dev_curve(path: Path, metric: str) -> Points:
    points = ((number(row.get("step")), number(_mapping(row.get("eval")).get(metric))) for row in _journal(path))
    return [(step, score) for step, score in points if step is not None and score is not None]


def _protocol(record: Record, run: Path) -> dict[str, str]:
    """Steps, batch, rate and sizes: what a score must never be shown without."""
    recipe, single = _toml(run / "recipe.toml"), _json(run / "results.json")
    examples = _mapping(record.get("examples") or single.get("examples"))
    values = {
        "steps": record.get("steps") or single.get("steps") or _at(recipe, "schedule", "total_steps"),
        "batch": record.get("batch_size") or _at(recipe, "train", "batch_size"),
        "learning rate": record.get("lr") or _at(recipe, "optimizer", "lr"),
        "train": examples.get("train"),
        "dev": examples.get("dev"),
    }
    shown = {key: number(value) for key, value in values.items()}
    return {
        key: f"{value:g}" if key == "learning rate" else f"{value:,.0f}"
        for key, value in shown.items()
        if value is not None
    }


def _read_examples(path: Path) -> Examples:
    record = _json(path)
    rows, columns = record.get("rows"), record.get("columns")
    return Examples(
        title=str(record.get("title", "Examples")),
        text=str(record.get("text", "")),
        rows=rows if isinstance(rows, list) else [],
        columns=[str(column) for column in columns] if isinstance(columns, list) else [],
    )


# ---------------------------------------------------------------- files


def _mapping(value: object) -> Record:
    return value if isinstance(value, dict) else {}


def _numbers(value: object) -> dict[str, float]:
    pairs = ((str(key), number(item)) for key, item in _mapping(value).items())
    return {key: item for key, item in pairs if item is not None}


def _at(values: Record, section: str, key: str) -> object:
    return _mapping(values.get(section)).get(key)


def _json(path: Path) -> Record:
    return store.read_json(path) if path.is_file() else {}


def _journal(path: Path) -> list[Record]:
    file = path / "metrics.jsonl"
    return [row for row in store.read_journal(file) if isinstance(row, dict)] if file.is_file() else []


def _toml(path: Path) -> Record:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}", "restore the file or leave its directory out") from None
