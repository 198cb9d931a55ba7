"""What lies in result directories, read into plain records for the report; nothing here computes or draws.

Files may come from anywhere, so that a value of the wrong type counts as absent and never as an error.
"""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albert_cli import console, journal, store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.results import CONTROLS, RESULTS, Record, Result, StrictText, finite_number, finite_numbers
from albert_cli.tasks.registry import TASKS

MAJORITY, CLASSICAL = "majority class", "classical baseline"
Curve = list[tuple[float, float]]
Recipe = Mapping[str, Any]  # as TOML gives it, by section


@dataclass(frozen=True)
class PretrainingRun:
    """A pretraining run: the figures of its journal by name, its recipe, and its checkpoints."""

    name: str
    training: Mapping[str, Curve]  # (step, value)
    heldout: Mapping[str, Mapping[str, Curve]]  # by corpus: "" for the held-out text, then those scored beside it
    recipe: Recipe
    checkpoints: Mapping[str, str]  # fingerprint -> "step 3,000"
    data: str = ""  # fingerprint of the data directory

    def points(self, name: str, corpus: str = "") -> Curve:
        """The held-out values of a figure."""
        return self.heldout.get(corpus, {}).get(name, [])

    def last(self, name: str, corpus: str = "") -> float | None:
        """The last of them, or None."""
        points = self.points(name, corpus)
        return points[-1][1] if points else None


@dataclass(frozen=True)
class Evaluation:
    """One model's scores on one task, one per seed, with the curves of its runs on dev."""

    model: str
    record: Result
    curves: Sequence[Curve]  # (step, score on dev), a seed each
    path: Path
    folders: Sequence[Path]  # of its runs, a seed each

    @property
    def task(self) -> str:
        """The task's name."""
        return self.record.task or self.path.name

    @property
    def title(self) -> str:
        """The task as people write it: what the result says, or the title of a task known by name."""
        known = TASKS.get(self.task)
        return self.record.title or (known.title if known else self.task)

    @property
    def question(self) -> tuple[str, ...]:
        """What two evaluations of one task share: tables of one's own have a name in common, and perhaps a title."""
        return (self.task, self.title, *(sorted(self.record.labels) if self.task not in TASKS else ()))

    @property
    def scores(self) -> Mapping[str, float]:
        """By seed, 0..1."""
        return self.record.by_seed

    @property
    def median(self) -> float:
        """The median score, as the paper reports (§4.9)."""
        return statistics.median(self.scores.values())

    @property
    def baselines(self) -> dict[str, float]:
        """The majority class, and the best of the linear models."""
        record = self.record
        found = {MAJORITY: record.majority} if record.majority is not None else {}
        return found | ({CLASSICAL: record.classical[1]} if record.classical else {})

    @property
    def part(self) -> int:
        """How many of the training examples a run learnt from, drawn by its seed; 0 where it was all of them."""
        wanted = self.record.train_examples
        return wanted if wanted <= self.record.examples.get("train", wanted) else 0  # there were not as many

    @property
    def labelled(self) -> int:
        """How many labelled examples that was; 0 where it is not known."""
        return self.part or int(self.record.examples.get("train", 0))

    @property
    def is_ensemble(self) -> bool:
        """Whether several models answered together, which were chosen on this very dev set."""
        return self.record.kind == "ensemble"

    @property
    def control(self) -> int:
        """0 for a model, 1 for the weights that its pretraining began with, 2 for random ones."""
        names = {self.record.weights, self.record.checkpoint}
        return next((rank for rank, name in enumerate(CONTROLS, start=1) if name in names), 0)


class ExampleTable(Record):
    """A table of words with its title (`examples.json`), such as what a model fills into masked words."""

    title: StrictText = "Examples"
    rows: Sequence[dict[str, str]] = ()


@dataclass(frozen=True)
class DataDirectory:
    """A data directory."""

    name: str
    path: Path
    fingerprint: str


@dataclass
class ReportInputs:
    """Everything found below the given directories."""

    data: list[DataDirectory] = field(default_factory=list)
    pretraining: list[PretrainingRun] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    examples: list[ExampleTable] = field(default_factory=list)


def collect(directories: Sequence[Path]) -> ReportInputs:
    """Walk down the directories and read every run, result and table of examples.

    Raises `InputError` for a directory that does not exist or when nothing is found in any of them.
    """
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: no such directory", "name the directories that the other verbs wrote")
    paths = list(_walk(directories))
    runs = [p for p in paths if not (p / RESULTS).exists() and any("mlm_loss" in of for of in read_curves(p))]
    data = [p for p in paths if (p / "data.json").is_file() and (of := store.read_manifest(p)) and of.kind == "data"]
    names = short_names([*runs, *data])
    pretraining = [_read_pretraining(path, names[path]) for path in runs]
    known = {mark: f"{run.name}, {step}" for run in pretraining for mark, step in run.checkpoints.items()}
    everything = ReportInputs(
        [DataDirectory(names[p], p, store.fingerprint(p)) for p in data],
        pretraining,
        _read_evaluations(paths, known),
        [ExampleTable.read(p / "examples.json") for p in paths if (p / "examples.json").is_file()],
    )
    if not any(vars(everything).values()):
        raise InputError(
            f"{', '.join(map(str, directories))}: no results here",
            "a result directory holds results.json, metrics.jsonl, examples.json or data.json",
        )
    return everything


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
    """For each path as few of its last parts as distinguish it from the others."""
    parts = {path: path.resolve().parts for path in paths}
    times = Counter(own[-n:] for own in parts.values() for n in range(1, len(own)))
    return {
        path: "/".join(next((own[-n:] for n in range(1, len(own)) if times[own[-n:]] == 1), own[-1:]))
        for path, own in parts.items()
    }


def read_curves(path: Path) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """The figures of a run's journal, each as (step, value): those of training, and those of its evaluations."""
    training: dict[str, Curve] = {}
    heldout: dict[str, Curve] = {}
    file = path / journal.JOURNAL
    for row in journal.read_journal(file) if file.is_file() else []:
        to, values = (heldout, row["eval"]) if "eval" in row else (training, row)
        for name, value in finite_numbers(values).items():
            to.setdefault(name, []).append((float(row["step"]), value))
    return training, heldout


def _read_pretraining(path: Path, name: str) -> PretrainingRun:
    training, scored = read_curves(path)
    heldout: dict[str, dict[str, Curve]] = {"": {}}
    for key, points in scored.items():
        corpus, _, figure = key.rpartition("/")
        heldout.setdefault(corpus, {})[figure] = points
    checkpoints: dict[str, str] = {}
    parents: dict[str, str] = {}
    for step in sorted(path.glob("step-*")):
        try:
            manifest = store.read_manifest(step)
        except CheckpointError as error:
            console.warn(error.message)
            continue
        if manifest is not None:
            digits = step.name.removeprefix("step-")
            checkpoints[manifest.fingerprint()] = f"step {int(digits):,}" if digits.isdecimal() else step.name
            parents |= manifest.parents
    recipe = store.read_toml(path / "recipe.toml") if store.is_listed(path / "recipe.toml") else {}
    return PretrainingRun(name, training, heldout, recipe, checkpoints, parents.get("data", ""))


def _read_evaluations(paths: Sequence[Path], checkpoints: Mapping[str, str]) -> list[Evaluation]:
    """Every `eval` result, every ensemble, and every single task run that is not part of an evaluation."""
    records = {path: Result.read(path / RESULTS) for path in paths}
    evals = {path: record for path, record in records.items() if record.kind == "eval"}
    runs = {
        path: record
        for path, record in records.items()
        if record.kind == "ensemble" or (record.kind == "run" and not any(above in evals for above in path.parents))
    }
    found = []
    for path, record in (evals | runs).items():
        below = [file.parent for file in sorted(path.glob(f"run-*/{RESULTS}"))] if record.scores_by_seed else [path]
        by_seed = {str(Result.read(folder / RESULTS).seed or 0): folder for folder in below}
        folders = {seed: folder for seed, folder in by_seed.items() if seed in record.by_seed}
        drawn = [read_curves(folder)[1].get(record.metric, []) for folder in folders.values()]
        name, lines = _model_name(record, checkpoints), [points for points in drawn if len(points) > 1]
        if record.by_seed:
            found.append(Evaluation(name, record, lines, path, list(folders.values())))
    return found


def _model_name(record: Result, checkpoints: Mapping[str, str]) -> str:
    if record.kind == "ensemble":
        return f"ensemble of {len(record.chosen)}" if record.chosen else "ensemble"
    mark = record.checkpoint
    for name, control in CONTROLS.items():
        if name in (record.weights, mark):
            return control
    return checkpoints.get(mark) or (f"checkpoint {mark[-16:][:8]}" if mark else "model")


def setting(recipe: Recipe, section: str, key: str) -> float | None:
    """A number of a recipe, or None."""
    values = recipe.get(section)
    return finite_number(values.get(key)) if isinstance(values, dict) else None
