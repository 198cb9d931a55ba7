"""`--submission`: predict GLUE's unlabeled test sets and write the files that GLUE's server scores.

One task's submission is its .tsv file (for MNLI, a zip of two); the submission of all tasks is a zip of eleven files.
Paths and test sets are checked before anything is trained.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import numpy as np

from albert_cli import console, store
from albert_cli.errors import ConfigError, InputError, MissingDataError
from albert_cli.evaluation.scoring import (
    checkpoint_for_test_set,
    predict_examples,
    prepare_evaluation,
    scoring_request,
)
from albert_cli.results import EvaluationResult, ScoredResult
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.metrics import Array
from albert_cli.training.task_setup import TaskRequest

_HEADER: Final = "index\tprediction\n"
_ZIP_DATE: Final = (1980, 1, 1, 0, 0, 0)  # the same date in every zip, so that equal predictions make equal files
_FORMULA_STARTS: Final = ("=", "+", "-", "@")  # a spreadsheet runs a cell that begins with one of these

PredictTestSet = Callable[[Sequence[TextExample]], Array]  # N examples -> logits [N, classes]


@dataclass(frozen=True)
class ServerFile:
    """A file that GLUE's server requires, with the predictions for one test set."""

    name: str
    task: str
    split: str
    rows: int  # the number of test examples
    placeholder: str  # the label in all rows if there is no model or no test set


# Names and sizes of the test sets: arXiv 1804.07461, table 1, and the benchmark's submission page.
SERVER_FILES: Final = (
    ServerFile("CoLA.tsv", "cola", "test", 1063, "1"),
    ServerFile("SST-2.tsv", "sst2", "test", 1821, "1"),
    ServerFile("MRPC.tsv", "mrpc", "test", 1725, "1"),
    ServerFile("STS-B.tsv", "stsb", "test", 1379, "2.500"),
    ServerFile("MNLI-m.tsv", "mnli", "test_matched", 9796, "neutral"),
    ServerFile("MNLI-mm.tsv", "mnli", "test_mismatched", 9847, "neutral"),
    ServerFile("QNLI.tsv", "qnli", "test", 5463, "entailment"),
    ServerFile("QQP.tsv", "qqp", "test", 390_965, "0"),
    ServerFile("RTE.tsv", "rte", "test", 3000, "entailment"),
    ServerFile("WNLI.tsv", "wnli", "test", 146, "0"),
    ServerFile("AX.tsv", "ax", "test", 1104, "neutral"),
)


# ---------------------------------------------------------------- one task


def check_task_submission(task: str, data: str | None, path: Path) -> None:
    """Raise an error if a task's submission cannot be written to `path`, or if its test set is missing or damaged.

    The submission of a task with one file is a .tsv. The submission of MNLI, which has two files, is a .zip.
    """
    files = _files_of_task(task)
    if not files:
        raise ConfigError(f"--submission: {task} is not a task of GLUE", f"tasks: {', '.join(GLUE)}")
    suffix = ".tsv" if len(files) == 1 else ".zip"
    if path.suffix != suffix or path.is_dir():
        names = " and ".join(file.name for file in files)
        raise ConfigError(f"--submission {path}: {task} needs a {suffix} ({names})", f"use --submission {task}{suffix}")
    for file in files:
        _read_test_set(file, data)  # raises `InputError`


def write_task_submission(task: str, data: str | None, path: Path, predict: PredictTestSet) -> None:
    """Predict the test sets of one task with `predict`, and write the task's .tsv file, or the .zip of its files."""
    contents = {}
    for file in _files_of_task(task):
        examples = _read_test_set(file, data)
        contents[file.name] = _format_file(file, examples, predict(examples))
    if len(contents) == 1:
        store.write_text(path, next(iter(contents.values())))
    else:
        _write_zip(path, contents)
    console.info(f"{path}: predictions for {', '.join(contents)}")


def predict_with(task: str, request: TaskRequest, checkpoint: str, precision: str) -> PredictTestSet:
    """Return a function that predicts a task's test set with `checkpoint`, a model that `request` trained or scored.

    precision: of matmuls, "fp32" or "bf16"; the one with which dev was scored.
    """

    def predict(examples: Sequence[TextExample]) -> Array:
        prepared = prepare_evaluation(task, scoring_request(request, checkpoint))
        return cast(Array, predict_examples(prepared, examples, precision=precision))

    return predict


def _files_of_task(task: str) -> list[ServerFile]:
    return [file for file in SERVER_FILES if file.task == task]


# ---------------------------------------------------------------- all of GLUE


def check_submission(data: str | None, path: Path) -> None:
    """Raise `ConfigError` if `path` is not the name of a zip, and `InputError` if a test set is damaged.

    A missing test set is allowed.
    """
    if path.suffix != ".zip" or path.is_dir():
        raise ConfigError(f"--submission {path}: is not the name of a zip", "use for example --submission glue.zip")
    for file in SERVER_FILES:
        with suppress(MissingDataError):
            _read_test_set(file, data)  # raises `InputError`


def write_submission(
    path: Path, request: TaskRequest, out: Path, results: Mapping[str, ScoredResult | EvaluationResult]
) -> None:
    """Predict every test set with the run that is best on the task's dev set, and write the zip.

    results: the results of the suite in `out`, by task. The server rejects a zip without all eleven files. Therefore a
    file without a model or a test set gets placeholder rows, and a warning lists these files.
    """
    contents: dict[str, str] = {}
    placeholders: list[str] = []
    for file in SERVER_FILES:
        examples = _find_test_set(file, request.data)
        trained_task = GLUE[file.task].classifier_of or file.task  # MNLI's model also predicts AX
        result = results.get(trained_task)
        if examples is not None and result is not None:
            checkpoint, precision = checkpoint_for_test_set(result, out / trained_task, request)
            logits = predict_with(file.task, request, checkpoint, precision)(examples)
            contents[file.name] = _format_file(file, examples, logits)
            console.info(f"{file.name}: {file.rows:,} rows predicted by {checkpoint}")
            continue
        if examples is None:
            missing = "no test set"
            ids = [str(index) for index in range(file.rows)]
        else:
            missing = "no model"
            ids = [example.id for example in examples]
        contents[file.name] = _format_rows(ids, [file.placeholder] * file.rows)
        placeholders.append(f"{file.name} ({file.placeholder}: {missing})")
    _write_zip(path, contents)
    if placeholders:
        console.warn(
            f"{path}: {len(placeholders)} of {len(SERVER_FILES)} files have the same placeholder in all rows: "
            f"{', '.join(placeholders)}"
        )


def _find_test_set(file: ServerFile, data: str | None) -> list[TextExample] | None:
    """Return the examples of a test set; None, with a note, if it is missing."""
    try:
        return _read_test_set(file, data)
    except MissingDataError as error:
        console.info(f"{file.name} will hold placeholders: {error.message}")
        return None


# ---------------------------------------------------------------- files


def _read_test_set(file: ServerFile, data: str | None) -> list[TextExample]:
    """Read a test set; raise `InputError` unless it has `file.rows` examples, or if a spreadsheet would run an id."""
    task = GLUE[file.task]
    examples = task.read(file.split, data)
    if len(examples) != file.rows:
        raise InputError(
            f"{task.title}: the test set has {len(examples):,} examples, GLUE's has {file.rows:,}",
            "the server rejects any other number; restore the file, or leave out --submission",
        )
    unsafe = [example.id for example in examples if example.id.startswith(_FORMULA_STARTS)]
    if unsafe:
        raise InputError(
            f"{task.title}: the test set has an id that a spreadsheet would run: {unsafe[0]}", "restore the file"
        )
    return examples


def _format_file(file: ServerFile, examples: Sequence[TextExample], logits: Array) -> str:
    return _format_rows([example.id for example in examples], format_labels(GLUE[file.task], logits))


def _format_rows(ids: Sequence[str], labels: Sequence[str]) -> str:
    return _HEADER + "".join(f"{example_id}\t{label}\n" for example_id, label in zip(ids, labels, strict=True))


def format_labels(task: Classification, logits: Array) -> list[str]:
    """Return the label of each row of logits [N, classes]: the class's name, or the value with three decimals.

    Values are clipped to the task's range.
    """
    predictions = task.predictions_from_logits(logits)
    if task.is_regression:
        return [f"{value:.3f}" for value in np.clip(predictions, *task.value_range)]
    return [task.labels[int(index)] for index in predictions]


def _write_zip(path: Path, contents: Mapping[str, str]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_DATE), content, zipfile.ZIP_DEFLATED)
    store.write_bytes(path, buffer.getvalue())
