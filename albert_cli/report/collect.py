"""Find and read the runs, results, data directories and example tables below some directories.

`collect_inputs` returns their contents; the names of runs and data directories are unique in the report. Reading a
damaged file raises `CheckpointError`, which names the file and the key.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import Any

from albert_cli import console, journal, store
from albert_cli.errors import CheckpointError, DiskError, InputError
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

CLASSICAL_BASELINE = "classical baseline"  # the title of the best linear model
EXAMPLES = "examples.json"
Curve = list[tuple[float, float]]  # (step, value)
Recipe = Mapping[str, Any]  # as parsed from TOML, by section


@dataclass(frozen=True)
class PretrainingRun:
    """A pretraining run: the curves of its journal, its recipe and its checkpoints."""

    name: str
    training: Mapping[str, Curve]  # by metric
    heldout: Mapping[str, Mapping[str, Curve]]  # by corpus and metric; corpus "" is the held-out part of the run's data
    recipe: Recipe
    checkpoints: Mapping[str, str]  # title, such as "step 3,000", by fingerprint; the newest is last
    data: str = ""  # fingerprint of the data directory; "" if it is unknown

    def heldout_curve(self, metric: str, corpus: str = "") -> Curve:
        """Return the held-out values of a metric; empty if it was not measured."""
        return self.heldout.get(corpus, {}).get(metric, [])

    def last_heldout(self, metric: str, corpus: str = "") -> float | None:
        """Return the last held-out value of a metric; None if it was not measured."""
        curve = self.heldout_curve(metric, corpus)
        return curve[-1][1] if curve else None

    def setting(self, section: str, key: str) -> float | None:
        """Return a number of the recipe; None if the recipe has no such key or no finite number there."""
        values = self.recipe.get(section)
        if not isinstance(values, dict):
            return None
        return _finite_number(values.get(key))


@dataclass(frozen=True)
class Evaluation:
    """A model's scores on a task, one for each seed, with the learning curves of its runs."""

    model: str  # a name, such as "run, step 3,000"
    record: TaskScore
    curves: Sequence[Curve]  # (step, score on dev), for each run that was scored more than once
    path: Path  # the directory of the result
    folders: Sequence[Path]  # the directories of the runs, one for each seed with a score

    @property
    def task_identity(self) -> tuple[str, ...]:
        """A key that the evaluations of one task share; two tables are one task only if title and labels are equal.

        `ambiguous_tables` gives tables with other dev examples other titles.
        """
        labels: list[str] = [] if self.record.task in TASKS else sorted(self.record.labels)
        return (self.record.task, self.record.title, *labels)

    @property
    def scores(self) -> Mapping[str, float]:
        """The score of each seed, 0 to 1."""
        return self.record.scores_by_seed

    @property
    def median(self) -> float:
        """The median score over the seeds, as in the paper (§4.2)."""
        return statistics.median(self.scores.values())

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of the constant baseline and of the best linear model, by title, if the record has them."""
        baselines = {}
        if self.record.majority is not None:
            title = constant_baseline(self.record.task)
            if title == "majority":
                title = "majority class"
            baselines[title] = self.record.majority
        if self.record.best_baseline is not None:
            _, score = self.record.best_baseline
            baselines[CLASSICAL_BASELINE] = score
        return baselines

    @property
    def sample_size(self) -> int:
        """The number of training examples sampled for each seed; 0 if all of them were used, or nothing was trained."""
        if self.record.training is None:
            return 0
        requested = self.record.training.train_examples
        if requested > self.record.examples.get("train", requested):  # there are fewer examples than requested
            return 0
        return requested

    @property
    def num_labeled(self) -> int:
        """The number of labeled examples used for training; 0 if it is unknown, as without training."""
        if self.record.training is None:
            return 0
        return self.sample_size or int(self.record.examples.get("train", 0))

    @property
    def num_dev(self) -> int:
        """The number of examples that were scored; 0 if unknown."""
        return sum(count for split, count in self.record.examples.items() if split != "train")

    @property
    def control_rank(self) -> int:
        """0 for a model, 1 for a control from its initial weights, 2 for a control from random weights."""
        training = self.record.training
        if training is None or training.weights not in CONTROLS:
            return 0
        return 1 + list(CONTROLS).index(training.weights)


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


def collect_inputs(directories: Sequence[Path]) -> ReportInputs:
    """Read every run, result, data directory and example table below the directories.

    Raises `InputError` if a directory does not exist or if there is nothing to report.
    """
    for directory in directories:
        if not directory.is_dir():
            raise InputError(*store.no_directory_message(directory, "name directories that albert has written"))
    paths = store.walk_folders(*directories)
    run_paths = [path for path in paths if _is_pretraining_run(path)]
    data_paths = [path for path in paths if _is_data_directory(path)]
    names = short_names([*run_paths, *data_paths])
    runs = [_read_pretraining(path, names[path]) for path in run_paths]
    checkpoint_names = {
        fingerprint: f"{run.name}, {step}" for run in runs for fingerprint, step in run.checkpoints.items()
    }
    inputs = ReportInputs(
        data=[DataDirectory(names[path], path, store.fingerprint(path)) for path in data_paths],
        pretraining=runs,
        evaluations=_read_evaluations(paths, checkpoint_names),
        # Here and below, `lexists` is also true for a damaged link, so reading it raises an error.
        examples=[store.read_record(path / EXAMPLES, ExampleTable) for path in paths if lexists(path / EXAMPLES)],
    )
    if not any(vars(inputs).values()):
        raise InputError(
            f"{', '.join(map(str, directories))}: no results here or below",
            f"a result directory contains {RESULTS}, {journal.JOURNAL}, {EXAMPLES} or data.json",
        )
    return inputs


def short_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Return for each path its shortest ending that no other path has, such as "b/run".

    A path that has no such ending is named by its last part.
    """
    endings_by_path = {path: _endings(path.resolve().parts) for path in paths}
    counts = Counter(ending for endings in endings_by_path.values() for ending in endings)
    names = {}
    for path, endings in endings_by_path.items():
        shortest_unique = next((ending for ending in endings if counts[ending] == 1), endings[0])
        names[path] = "/".join(shortest_unique)
    return names


def _endings(parts: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a path's endings: the last part, the last two parts, and so on, without the root directory."""
    names = tuple(parts[1:] or parts)  # the root directory itself has only this part
    return [names[-n:] for n in range(1, len(names) + 1)]


def read_curves(path: Path) -> tuple[dict[str, Curve], dict[str, Curve]]:
    """Read a run's journal; return the curves of training and the curves of its evaluations, both by metric.

    Values that are no finite numbers are left out. Without a journal there are no curves.
    """
    training: dict[str, Curve] = {}
    evaluations: dict[str, Curve] = {}
    file = path / journal.JOURNAL
    if not lexists(file):
        return training, evaluations
    for row in journal.read_journal(file):
        values: Mapping[str, object] = row
        curves = training
        if "eval" in row:
            values = row["eval"]
            curves = evaluations
        for metric, value in values.items():
            number = _finite_number(value)
            if number is not None:
                curves.setdefault(metric, []).append((float(row["step"]), number))
    return training, evaluations


def _is_pretraining_run(path: Path) -> bool:
    """Return True for a directory with a journal of MLM losses and without a result, which fine-tuning would write."""
    if lexists(path / RESULTS):
        return False
    training, evaluations = read_curves(path)
    return "mlm_loss" in training or "mlm_loss" in evaluations


def _is_data_directory(path: Path) -> bool:
    """Return True for a directory of token shards; another program may have written a file `data.json`."""
    if not lexists(path / "data.json") and not lexists(path / "shards"):
        return False
    manifest = store.read_manifest(path)
    return manifest is not None and manifest.kind == "data"


def _read_pretraining(path: Path, name: str) -> PretrainingRun:
    """Read a pretraining run; a damaged checkpoint is left out with a warning."""
    training, evaluations = read_curves(path)
    heldout: dict[str, dict[str, Curve]] = {"": {}}
    for key, curve in evaluations.items():  # the key is METRIC, or CORPUS/METRIC for another held-out corpus
        corpus, _, metric = key.rpartition("/")
        heldout.setdefault(corpus, {})[metric] = curve
    checkpoints: dict[str, str] = {}
    data = ""
    for step in sorted(path.glob("step-*")):
        try:
            manifest = store.read_manifest(step)
        except DiskError:
            raise
        except CheckpointError as error:
            console.warn(error.message)
            continue
        if manifest is not None:
            digits = step.name.removeprefix("step-")
            title = f"step {int(digits):,}" if digits.isdecimal() else step.name
            checkpoints.setdefault(manifest.fingerprint(), title)  # a copy of a step, such as step-5-good, comes later
            data = manifest.parents.get("data", data)
    recipe: Recipe = {}
    if store.exists_or_is_listed(path / "recipe.toml"):
        recipe = store.read_toml(path / "recipe.toml")
    return PretrainingRun(name, training, heldout, recipe, checkpoints, data)


def _read_evaluations(paths: Sequence[Path], checkpoints: Mapping[str, str]) -> list[Evaluation]:
    """Read every `eval` result, every ensemble, and every single run that is not part of an `eval` result.

    checkpoints: the names of the checkpoints of pretraining runs in the report, by fingerprint.
    """
    records = {path: record for path in paths if (record := _read_task_score(path)) is not None}
    evals = [path for path, record in records.items() if isinstance(record, EvaluationResult)]
    resolved = {path.resolve() for path in evals}
    ensembles = [path for path, record in records.items() if isinstance(record, EnsembleResult)]
    separate_runs = [
        path
        for path, record in records.items()
        if isinstance(record, ScoredResult) or (isinstance(record, RunResult) and not _is_run_of_eval(path, resolved))
    ]
    evaluations = []
    for path in (*evals, *ensembles, *separate_runs):
        record = records[path]
        folders = _run_folders(path, record)
        curves = []
        for folder in folders:
            _, evaluation_curves = read_curves(folder)
            curve = evaluation_curves.get(record.metric, [])
            if len(curve) > 1:
                curves.append(curve)
        evaluations.append(Evaluation(_model_name(record, checkpoints), record, curves, path, folders))
    return evaluations


def _is_run_of_eval(path: Path, evals: Set[Path]) -> bool:
    """Return True for a run of a seed, of a control or of an intermediate task: `run-SEED` below an `eval` result.

    evals: the directories of the `eval` results, without links.
    """
    # The run or a folder above it may be a link, and one directory may be relative and another absolute.
    for run in (store.resolve_dots(path).absolute(), path.resolve()):
        parents = {parent.resolve() for parent in run.parents}
        if run.name.startswith("run-") and not parents.isdisjoint(evals):
            return True
    return False


def _read_task_score(directory: Path) -> TaskScore | None:
    """Read a directory's score of one task; None without a result, and for that of an experiment, suite or search."""
    path = directory / RESULTS
    if not lexists(path) or store.read_json(path).get("kind") not in KINDS:
        return None
    result = read_result(path)
    if isinstance(result, RunResult | ScoredResult | EvaluationResult | EnsembleResult):
        return result
    return None


def _run_folders(path: Path, record: TaskScore) -> list[Path]:
    """Return the folders of the runs behind a score: `path` itself, or one for each seed of an evaluation."""
    if not isinstance(record, EvaluationResult):
        return [path]
    folders = [file.parent for file in sorted(path.glob(f"run-*/{RESULTS}"))]
    return [folder for folder in folders if folder.name.removeprefix("run-") in record.scores_by_seed]


def _model_name(record: TaskScore, checkpoints: Mapping[str, str]) -> str:
    """Return the name of the model in the report: a control's title, or the name or fingerprint of its checkpoint."""
    if isinstance(record, EnsembleResult):
        return f"ensemble of {len(record.chosen)}"
    if record.training is not None and record.training.weights in CONTROLS:
        return CONTROLS[record.training.weights]
    if record.checkpoint in checkpoints:
        return checkpoints[record.checkpoint]
    hex_digits = record.checkpoint.removeprefix("unverified-")
    return f"checkpoint {hex_digits[:8]}"


def _finite_number(value: object) -> float | None:
    """Return a finite number as a float, and None for anything else, also for True and False."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
