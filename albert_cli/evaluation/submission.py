"""`--submission`: test-set predictions as GLUE's server takes them, a zip of exactly eleven files."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from albert_cli.training.task_setup import TaskRequest

HEADER = "index\tprediction\n"
_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest date a zip can hold: equal predictions make an equal file


@dataclass(frozen=True)
class ServerFile:
    """A file of the zip: its name, whose split it answers, how many rows it has, and what fills it without a model."""

    name: str
    task: str
    split: str
    rows: int
    placeholder: str


# Names and the sizes of the test sets: arXiv 1804.07461, table 1, and the benchmark's submission page.
SERVER_FILES = (
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


def check_submission(data: str | None, path: Path) -> None:
    """Refuse test sets of another size than the server's, and a path that will not do, before anything is trained."""
    if path.suffix != ".zip" or path.is_dir():
        raise ConfigError(f"--submission {path}: is not the name of a zip", "for example --submission submission.zip")
    for file in SERVER_FILES:
        _read_test_set(file, data)


def write_submission(
    path: Path, request: TaskRequest, out: Path, tasks: Mapping[str, ScoredResult | EvaluationResult]
) -> None:
    """Predict every test set by the task's best seed on dev, and write the zip.

    `tasks` are the results of the suite below `out`. A task without a model or a test set gets placeholder rows, for
    the server takes nothing less than eleven files; a warning names them.
    """
    contents, placeholders = {}, []
    for file in SERVER_FILES:
        examples = _read_test_set(file, request.data)
        model = checkpoint_for_test_set(GLUE[file.task].classifier_of or file.task, request, out, tasks)
        if examples is None or model is None:
            lacks = "no test set" if examples is None else "no model"
            ids = [e.id for e in examples] if examples else list(map(str, range(file.rows)))
            labels = [file.placeholder] * file.rows
            placeholders.append(f"{file.name} ({file.placeholder}: {lacks})")
        else:
            outputs = predict_examples(prepare_evaluation(file.task, scoring_request(request, model)), examples)
            ids, labels = [e.id for e in examples], format_labels(GLUE[file.task], outputs)
            console.info(f"{file.name}: {file.rows:,} rows predicted by {model}")
        contents[file.name] = HEADER + "".join(f"{i}\t{label}\n" for i, label in zip(ids, labels, strict=True))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name, _ZIP_DATE), content, zipfile.ZIP_DEFLATED)
    store.write_bytes(path, buffer.getvalue())
    if placeholders:
        listed = ", ".join(placeholders)
        console.warn(f"{path}: {len(placeholders)} of {len(SERVER_FILES)} files hold one answer for all rows: {listed}")


def _read_test_set(file: ServerFile, data: str | None) -> list[TextExample] | None:
    """The examples to answer, None where they are not there; raises `InputError` where there are more or less."""
    task = GLUE[file.task]
    try:
        examples = task.read(file.split, data)
    except MissingDataError as error:
        console.info(f"{file.name} will hold placeholders: {error.message}")
        return None
    if len(examples) != file.rows:
        raise InputError(
            f"{task.title}: the test set has {len(examples):,} examples, GLUE's has {file.rows:,}",
            "the server refuses any other number; leave out --submission, or restore the file",
        )
    if formula := next((e.id for e in examples if e.id.startswith(("=", "+", "-", "@"))), None):
        raise InputError(f"{task.title}: the test set has an id that a spreadsheet computes: {formula}", "restore it")
    return examples


def format_labels(task: Classification, logits: NDArray[Any]) -> list[str]:
    """The labels' names, 0 or 1 where these are the names; values clipped to the task's range."""
    predicted = task.predictions_from_logits(logits)
    if task.is_regression:
        return [f"{value:.3f}" for value in np.clip(predicted, *task.value_range)]
    return [task.labels[int(index)] for index in predicted]
