"""Find and read the runs, results, data directories and example tables below some directories.

A damaged file raises `CheckpointError` that names the file and the key.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albert_cli import console, journal, store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.results import (
    CONTROLS,
    KINDS,
    RESULTS,
    EnsembleResult,
    EvaluationResult,
    Record,
    RunResult,
    ScoredResult,
    TaskScore,
    read_result,
)
from albert_cli.tasks.registry import TASKS, constant_baseline

CLASSICAL = "classical baseline"
EXAMPLES = "examples.json"
Curve = list[tuple[float, float]]
Recipe = Mapping[str, Any]  # as parsed from TOML, by section


@dataclass(frozen=True)
class PretrainingRun:
    """A pretraining run: the curves of its journal by metric, its recipe and its checkpoints."""

    name: str
    training: Mapping[str, Curve]  # (step, value)
    heldout: Mapping[str, Mapping[str, Curve]]  # by corpus; "" is the run's own held-out text
    recipe: Recipe
    checkpoints: Mapping[str, str]  # fingerprint -> "step 3,000"
    data: str = ""  # fingerprint of the data directory

    def heldout_curve(self, metric: str, corpus: str = "") -> Curve:
        """Return the held-out values of a metric; empty if it was not measured."""
        return self.heldout.get(corpus, {}).get(metric, [])

    def last_heldout(self, metric: str, corpus: str = "") -> float | None:
        """Return the last held-out value of a metric."""
        curve = self.heldout_curve(metric, corpus)
        return curve[-1][1] if curve else None

    def setting(self, section: str, key: str) -> float | None:
        """Return a number of the recipe, or None."""
        values = self.recipe.get(section)
        return _finite_number(values.get(key)) if isinstance(values, dict) else None


@dataclass(frozen=True)
class Evaluation:
    """A model's scores on a task by seed, with the learning curves of its runs."""

    model: str
    record: TaskScore
    curves: Sequence[Curve]  # (step, score on dev) by seed
    path: Path
    folders: Sequence[Path]  # the folders of its runs, by seed

    @property
    def task(self) -> str:
        """The task's name."""
        return self.record.task

    @property
    def title(self) -> str:
        """The task's title."""
        return self.record.title

    @property
    def task_identity(self) -> tuple[str, ...]:
        """A key shared by all evaluations of a task; custom tables also differ by title and labels."""
        labels = sorted(self.record.labels) if self.task not in TASKS else ()
        return (self.task, self.title, *labels)

    @property
    def scores(self) -> Mapping[str, float]:
        """The score of each seed, 0 to 1."""
        return self.record.scores_by_seed

    @property
    def median(self) -> float:
        """The median score, as the paper reports (§4.9)."""
        return statistics.median(self.scores.values())

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of the baseline without context and of the best linear model."""
        baselines = {}
        if self.record.majority is not None:
            name = constant_baseline(self.task)
            baselines["majority class" if name == "majority" else name] = self.record.majority
        if self.record.best_baseline:
            baselines[CLASSICAL] = self.record.best_baseline[1]
        return baselines

    @property
    def sample_size(self) -> int:
        """The number of training examples sampled for each seed; 0 if all of them were used."""
        requested = self.record.training.train_examples if self.record.training else 0
        return requested if requested <= self.record.examples.get("train", requested) else 0

    @property
    def num_labeled(self) -> int:
        """The number of labeled examples used for training; 0 if unknown."""
        return self.sample_size or int(self.record.examples.get("train", 0))

    @property
    def is_ensemble(self) -> bool:
        """True if several models, selected on this dev set, predict together."""
        return isinstance(self.record, EnsembleResult)

    @property
    def control(self) -> int:
        """0 for a model, 1 for a control from its initial weights, 2 for one from random weights."""
        weights = self.record.training.weights if self.record.training else ""
        return next((rank for rank, name in enumerate(CONTROLS, start=1) if name == weights), 0)


class ExampleTable(Record):
    """A table of texts with a title (`examples.json`), such as predictions for masked words."""

    title: str = "Examples"
    rows: Sequence[dict[str, str]] = ()


@dataclass(frozen=True)
class DataDirectory:
    """A data directory."""

    name: str
    path: Path
    fingerprint: str


@dataclass(frozen=True)
class ReportInputs:
    """Everything that a report shows."""

    data: Sequence[DataDirectory]
    pretraining: Sequence[PretrainingRun]
    evaluations: Sequence[Evaluation]
    examples: Sequence[ExampleTable]


def collect(directories: Sequence[Path]) -> ReportInputs:
    """Read every run, result, data directory and example table below the directories.

    Raises `InputError` if a directory does not exist or if there is nothing to report.
    """
    for directory in directories:
        if not directory.is_dir():
            raise InputError(f"{directory}: no such directory", "name directories that other verbs have written")
    paths = list(_walk(directories))
    run_paths = [path for path in paths if _is_pretraining_run(path)]
    data_paths = [path for path in paths if _is_data_directory(path)]
    names = short_names([*run_paths, *data_paths])
    runs = [_read_pretraining(path, names[path]) for path in run_paths]
    checkpoint_names = {mark: f"{run.name}, {step}" for run in runs for mark, step in run.checkpoints.items()}
    inputs = ReportInputs(
        data=[DataDirectory(names[path], path, store.fingerprint(path)) for path in data_paths],
        pretraining=runs,
        evaluations=_read_evaluations(paths, checkpoint_names),
        examples=[store.read_record(path / EXAMPLES, ExampleTable) for path in paths if (path / EXAMPLES).is_file()],
    )
    if not any(vars(inputs).values()):
        raise InputError(
            f"{', '.join(map(str, directories))}: no results here",
            f"a result directory contains {RESULTS}, {journal.JOURNAL}, {EXAMPLES} or data.json",
        )
    return inputs


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return for each path the fewest last parts that distinguish it from the others."""
    parts = {path: path.resolve().parts for path in paths}
    counts = Counter(names[-n:] for names in parts.values() for n in range(1, len(names)))
    unique = {
        path: next((names[-n:] for n in range(1, len(names)) if counts[names[-n:]] == 1), names[-1:])
        for path, names in parts.items()
    }
    return {path: "/".join(names) for path, names in unique.items()}


def read_curves(path: Path) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Read a run's journal: the curves (step, value) of training, and the curves of its evaluations."""
    training: dict[str, Curve] = {}
    heldout: dict[str, Curve] = {}
    file = path / journal.JOURNAL
    for row in journal.read_journal(file) if file.is_file() else []:
        is_evaluation = "eval" in row
        curves = heldout if is_evaluation else training
        for metric, value in _finite_numbers(row["eval"] if is_evaluation else row).items():
            curves.setdefault(metric, []).append((float(row["step"]), value))
    return training, heldout


def _walk(directories: Sequence[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for start in directories:
        for folder, below, _ in os.walk(start):
            below[:] = sorted(name for name in below if not name.startswith((".", "step-")))
            path = Path(folder)
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path


def _is_pretraining_run(path: Path) -> bool:
    if (path / RESULTS).exists():
        return False
    training, heldout = read_curves(path)
    return "mlm_loss" in training or "mlm_loss" in heldout


def _is_data_directory(path: Path) -> bool:
    if not (path / "data.json").is_file():
        return False
    manifest = store.read_manifest(path)
    return manifest is not None and manifest.kind == "data"


def _read_pretraining(path: Path, name: str) -> PretrainingRun:
    training, scored = read_curves(path)
    heldout: dict[str, dict[str, Curve]] = {"": {}}
    for key, curve in scored.items():
        corpus, _, metric = key.rpartition("/")
        heldout.setdefault(corpus, {})[metric] = curve
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
    """Read every `eval` result, every ensemble, and every task run that is not part of an evaluation."""
    records = {path: record for path in paths if (record := _read_task_score(path)) is not None}
    evals = {path: record for path, record in records.items() if isinstance(record, EvaluationResult)}
    ensembles = {path: record for path, record in records.items() if isinstance(record, EnsembleResult)}
    single = {
        path: record
        for path, record in records.items()
        if isinstance(record, RunResult | ScoredResult) and not any(parent in evals for parent in path.parents)
    }
    evaluations = []
    for path, record in (evals | ensembles | single).items():
        folders = _run_folders(path, record)
        curves = [read_curves(folder)[1].get(record.metric, []) for folder in folders]
        name = _model_name(record, checkpoints)
        evaluations.append(Evaluation(name, record, [curve for curve in curves if len(curve) > 1], path, folders))
    return evaluations


def _read_task_score(directory: Path) -> TaskScore | None:
    """Read a directory's score of one task; None if it has no result, or one of an experiment, a suite or a search."""
    path = directory / RESULTS
    if not path.is_file() or store.read_json(path).get("kind") not in KINDS:
        return None
    result = read_result(path)
    if isinstance(result, RunResult | ScoredResult | EvaluationResult | EnsembleResult):
        return result
    return None


def _run_folders(path: Path, record: TaskScore) -> list[Path]:
    """Return the folder of each run that has a score."""
    if not isinstance(record, EvaluationResult):
        return [path]
    folders = [file.parent for file in sorted(path.glob(f"run-*/{RESULTS}"))]
    return [folder for folder in folders if folder.name.removeprefix("run-") in record.scores_by_seed]


def _model_name(record: TaskScore, checkpoints: Mapping[str, str]) -> str:
    if isinstance(record, EnsembleResult):
        return f"ensemble of {len(record.chosen)}"
    if record.training is not None and record.training.weights in CONTROLS:
        return CONTROLS[record.training.weights]
    fingerprint = record.checkpoint
    return checkpoints.get(fingerprint) or f"checkpoint {fingerprint[-16:][:8]}"


def _finite_number(value: object) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _finite_numbers(values: object) -> dict[str, float]:
    """Return the finite numbers of a journal's line."""
    items = values.items() if isinstance(values, Mapping) else ()
    numbers = {str(key): _finite_number(value) for key, value in items}
    return {key: number for key, number in numbers.items() if number is not None}
