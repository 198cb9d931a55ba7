"""`albert predict`: label the rows of a table, of JSON lines or of plain text with a task checkpoint.

A second thread tokenizes the next chunk of rows while the model computes the predictions of the current chunk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from albert_cli import console
from albert_cli.data.run_ahead import run_ahead
from albert_cli.inference.documents import read_document
from albert_cli.inference.inputs import CHUNK_ROWS, InputReader, InputRow
from albert_cli.inference.model import InferenceCheckpoint, Precision, open_for_inference
from albert_cli.inference.outputs import (
    TABLE_SUFFIXES,
    check_output_format,
    merge_columns,
    open_prediction_writer,
)
from albert_cli.model import hub
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.choice import Choice
from albert_cli.tasks.features import Features
from albert_cli.tasks.registry import sentence_order_classifier, task_from_checkpoint
from albert_cli.tasks.table_layout import TableLayout
from albert_cli.text.read_settings import OnBadBytes
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.device import autocast


@dataclass(frozen=True)
class InferenceSummary:
    """The result of predicting or encoding a file.

    `lines` is the number of inputs and `truncated` the number of truncated ones. `longest` is the number of tokens of
    the longest input after truncation. `matmul` is the library that multiplied the matrices.
    """

    out: str | None
    lines: int
    seconds: float
    lines_per_second: float
    truncated: int
    longest: int
    precision: str
    matmul: str


@dataclass(frozen=True)
class TokenizedRows:
    """Rows of an input, and the features that the task has encoded from their examples."""

    rows: Sequence[InputRow]
    features: Features


@dataclass
class InputTotals:
    """Running totals of the inputs of a file, from which `summarize` makes an `InferenceSummary`."""

    started: float = field(default_factory=time.monotonic)  # the time in seconds at which the object was created
    lines: int = 0
    truncated: int = 0
    longest: int = 0

    def add(self, tokenized: TokenizedRows) -> None:
        """Add the numbers of a chunk of rows."""
        self.lines += len(tokenized.rows)
        self.truncated += tokenized.features.truncated
        self.longest = max(self.longest, int(tokenized.features.lengths.max(initial=0)))

    def summarize(self, out: Path | None, opened: InferenceCheckpoint, limit: int, truncation: str) -> InferenceSummary:
        """Print how many inputs were truncated and the longest length after that, and return the summary.

        limit: the number of tokens to which inputs are truncated. truncation: the words that follow the number of
        truncated inputs, such as "inputs are longer than 512 tokens".
        """
        seconds = time.monotonic() - self.started
        if self.truncated:
            console.info(f"{self.truncated:,} of {self.lines:,} {truncation} and were truncated")
        longest = "the longest input after truncation" if self.truncated else "the longest input"
        console.info(f"{longest} has {self.longest:,} tokens; the limit is {limit:,}")
        return InferenceSummary(
            out=None if out is None else str(out),
            lines=self.lines,
            seconds=round(seconds, 3),
            lines_per_second=round(self.lines / seconds, 1),
            truncated=self.truncated,
            longest=self.longest,
            precision=opened.settings.precision,
            matmul=opened.settings.matmul,
        )


@dataclass(frozen=True)
class Predictor:
    """A task checkpoint that is ready to predict: its task, its model on the device, and its vocabulary."""

    task: AnyTask
    model: nn.Module
    vocabulary: Vocabulary
    opened: InferenceCheckpoint

    def predict(self, tokenized: TokenizedRows) -> list[dict[str, object]]:
        """Return the prediction of each row: the JSON object that the task writes for the row's example."""
        with autocast(self.opened.settings.precision, self.opened.device):
            outputs = self.task.predict(self.model, tokenized.features, self.opened.device)
        examples = [row.example for row in tokenized.rows]
        return [json.loads(line) for line in self.task.format_predictions(examples, outputs, with_details=False)]


def load_predictor(
    checkpoint: str, device: str, precision: Precision = "auto", null_threshold: float | None = None
) -> Predictor:
    """Load a task checkpoint, or a pretrained checkpoint, whose sentence head then classifies pairs of texts.

    null_threshold: null score above which a question is left unanswered. Raises `CheckpointError` for a checkpoint
    without a head that predicts.
    """
    opened = open_for_inference(checkpoint, device, precision).with_faster_matmul()
    as_order_classifier = sentence_order_classifier(opened.checkpoint)
    if as_order_classifier is not None:
        classes = ", ".join(as_order_classifier.output_names)
        console.info(f"{checkpoint}: is not fine-tuned, so its sentence head classifies pairs of texts ({classes})")
        opened = replace(opened, checkpoint=as_order_classifier)
    task = task_from_checkpoint(opened.checkpoint)
    if null_threshold is not None:
        task = task.with_null_threshold(null_threshold)
    model = opened.prepare(task.load(opened.checkpoint))
    return Predictor(task, model, hub.load_vocabulary(opened.checkpoint), opened)


def predict_file(
    checkpoint: str,
    input_file: str,
    out: Path | None,
    device: str,
    on_bad_bytes: OnBadBytes = "refuse",
    precision: Precision = "auto",
    null_threshold: float | None = None,
) -> InferenceSummary:
    """Predict every row of a file, or of standard input (`-`), with a task checkpoint.

    A .csv, .tsv or .parquet file has the columns of training, or columns with usual names; .jsonl has an object per
    line; other files have one text per line. The ending of `out` selects its format, and the output repeats the columns
    of the input; without `out`, JSON lines go to stdout. Texts are truncated as in fine-tuning. Lines from a pipe are
    predicted as soon as they arrive. Raises `InputError` with file and line for a row that the task cannot read.
    """
    check_output_format(out)
    predictor = load_predictor(checkpoint, device, precision, null_threshold)
    task = predictor.task
    finetuned = predictor.opened.checkpoint.finetuned_task
    limit = predictor.opened.checkpoint.max_length
    writes_table = out is not None and out.suffix.lower() in TABLE_SUFFIXES
    # A later question may have more options, and so more columns than the header of the first questions would have.
    needs_all_rows = writes_table and isinstance(task, Choice)
    totals = InputTotals()
    rows: list[dict[str, object]] = []
    with open_prediction_writer(out, input_file) as write:
        chunks = read_rows(task, finetuned, input_file, on_bad_bytes)
        for tokenized in run_ahead(tokenize_rows(chunks, task, predictor.vocabulary, limit), join_seconds=0):
            predictions = predictor.predict(tokenized)
            for row, prediction in zip(tokenized.rows, predictions, strict=True):
                columns = row.columns
                if writes_table and not columns:  # plain text has no columns: the table gets the id and the texts
                    columns = {"id": prediction["id"], **task.example_fields(row.example)}
                rows.append(merge_columns(columns, prediction, input_file))
            totals.add(tokenized)
            if not needs_all_rows:
                write(rows)
                rows = []
        if rows:
            write(rows)
    return totals.summarize(out, predictor.opened, limit, task.describe_truncation(limit))


def tokenize_rows(
    chunks: Iterable[list[InputRow]], task: AnyTask, vocabulary: Vocabulary, max_length: int
) -> Iterator[TokenizedRows]:
    """Tokenize chunks of rows; a chunk is split if its examples cannot be encoded together."""
    for chunk in chunks:
        start = 0
        for examples in task.group_for_encoding([row.example for row in chunk]):
            rows = chunk[start : start + len(examples)]
            start += len(examples)
            yield TokenizedRows(rows, task.encode(examples, vocabulary, max_length))


def read_rows(
    task: AnyTask, finetuned: hub.FinetunedTask | None, input_file: str, on_bad_bytes: OnBadBytes = "refuse"
) -> Iterator[list[InputRow]]:
    """Yield the rows of a file or of standard input (`-`) in chunks of at most `CHUNK_ROWS`.

    A file may also be in the published layout of the task's data. finetuned: the record of the checkpoint's
    fine-tuning, with the column names that the input may have.
    """
    document = None if input_file == "-" else read_document(task, Path(input_file))
    if document is not None:
        for start in range(0, len(document), CHUNK_ROWS):
            yield [InputRow(example, {}) for example in document[start : start + CHUNK_ROWS]]
        return
    reader = InputReader(task, TableLayout.from_finetuned(finetuned), on_bad_bytes)
    yield from reader.read_chunks(input_file)
