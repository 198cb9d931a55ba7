"""GLUE (Wang et al., arXiv 1804.07461) as published: one folder a task, tab-separated, quoting off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from albert_cli import console
from albert_cli.errors import InputError, MissingData
from albert_cli.tasks.classification import Classification, Example
from albert_cli.tasks.rows import Rows, check_folder, is_hub, read_delimited, read_hub

HUB = "hf:nyu-mll/glue"


@dataclass(frozen=True)
class Column:
    """A column by its place, counted from 0 (or -1, the last), and its name in the header."""

    place: int
    name: str


@dataclass(frozen=True)
class Columns:
    """The columns of a file that are used; without a header the names are only for messages."""

    texts: tuple[Column, ...]
    label: Column | None = None
    id: Column | None = None
    header: bool = True

    @property
    def used(self) -> tuple[Column, ...]:
        """All of them, in the order of a message."""
        return (*self.texts, *(c for c in (self.label, self.id) if c is not None))


@dataclass(frozen=True)
class GlueFiles:
    """A task of GLUE: `folder/SPLIT.tsv`, or the Hub's configuration `config` with `hub_texts` as its texts.

    Another data set of the Hub with these columns does too, its configuration named: `hf:NAME:CONFIG`.

    `skip_short` leaves out rows with too few fields, as the reference does for QQP, whose questions hold line
    breaks; everywhere else such a row is an error. `files` names the files that are not called as their split.
    """

    folder: str
    config: str
    hub_texts: tuple[str, ...]
    labelled: Columns
    test: Columns
    skip_short: bool = False
    files: Mapping[str, str] = field(default_factory=dict, hash=False)

    def read(self, task: Classification, split: str, data: str | None) -> list[Example]:
        """All examples of a split; without `data` from the Hub."""
        if data is None or is_hub(data):
            return self._from_hub(task, split, data or HUB)
        path = self._find(Path(data), split)
        columns = self.test if split in task.test_splits else self.labelled
        rows = read_delimited(path, header=columns.header)
        if columns.header:
            _check_header(rows, columns)
        elif rows.cells and any(column.name in rows.cells[0] for column in columns.used):
            raise InputError(f"{path}:1: a header, where {task.title} is published without", "remove the first line")
        width = len(rows.columns) or 1 + max(column.place for column in columns.used)
        if self.skip_short:
            whole = rows.without_short_rows(width)
            if skipped := len(rows.cells) - len(whole.cells):
                console.note(f"{rows.origin}: {skipped} rows with fewer than {width} fields are left out")
            rows = whole
        else:
            rows.check_widths(width)
        if columns.id and split != task.train_split:
            rows.check_unique(columns.id.place)
        return _examples(task, rows, columns, is_labelled=split not in task.test_splits)

    def _find(self, data: Path, split: str) -> Path:
        file = f"{self.files.get(split, split)}.tsv"
        check_folder(data, f"{self.folder}/{file}")
        for path in (data / self.folder / file, data / file):
            if path.is_file():
                return path
        raise MissingData(
            f"{data}: neither {self.folder}/{file} nor {file} is there",
            f"without --data it is read from the Hugging Face Hub ({HUB})",
        )

    def _from_hub(self, task: Classification, split: str, source: str) -> list[Example]:
        source = f"{HUB}:{self.config}" if source == HUB else source
        rows = read_hub(source, split.replace("dev", "validation"))
        *places, place = rows.places((*self.hub_texts, "label"))
        names = rows.names.get("label", ())
        if task.labels and not set(names) <= set(task.labels):
            # CoLA, SST-2, MRPC, QQP and WNLI: the files say 0 and 1, the Hub has names for the same two.
            for row in rows.cells:
                row[place] = str(names.index(row[place])) if row[place] in names else row[place]
        texts = tuple(map(Column, places, self.hub_texts))
        identifier = Column(rows.columns.index("idx"), "idx") if "idx" in rows.columns else None
        columns = Columns(texts, Column(place, "label"), identifier)
        return _examples(task, rows, columns, is_labelled=split not in task.test_splits)


def _check_header(rows: Rows, columns: Columns) -> None:
    for column in columns.used:
        there = rows.columns[column.place] if column.place < len(rows.columns) else None
        if there != column.name:
            wanted = ", ".join(f"{c.name!r} ({_ordinal(c.place)})" for c in columns.used)
            raise InputError(
                f"{rows.origin}:1: not the published header: {_ordinal(column.place)} column is {there!r}",
                f"wanted columns: {wanted}",
            )


def _ordinal(place: int) -> str:
    return "last" if place < 0 else ("1st", "2nd", "3rd")[place] if place < 3 else f"{place + 1}th"


def _examples(task: Classification, rows: Rows, columns: Columns, *, is_labelled: bool) -> list[Example]:
    first, *second = (column.place for column in columns.texts)
    label, identifier = columns.label, columns.id
    return [
        Example(
            text_a=row[first],
            text_b=row[second[0]] if second else None,
            label=task.parse_label(row[label.place], rows.where(i)) if is_labelled and label else None,
            id=row[identifier.place] if identifier else str(i),
        )
        for i, row in enumerate(rows.not_empty().cells)
    ]


# ---------------------------------------------------------------- the tasks, labels in the reference's order

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")
_INDEX = Column(0, "index")
_QQP_ID = Column(0, "id")
_SENTENCES = (Column(1, "sentence1"), Column(2, "sentence2"))
_QUESTION = (Column(1, "question"), Column(2, "sentence"))
_PARAPHRASES = (Column(3, "#1 String"), Column(4, "#2 String"))
_SIMILAR = (Column(7, "sentence1"), Column(8, "sentence2"))
_PREMISE = (Column(8, "sentence1"), Column(9, "sentence2"))
_DIAGNOSED = (Column(5, "Premise"), Column(6, "Hypothesis"))
_ONE_SENTENCE = Columns((Column(1, "sentence"),), id=_INDEX)
_INDEXED_PAIR = Columns(_SENTENCES, Column(-1, "label"), _INDEX)

# Wang et al., arXiv 1804.07461, table 1. MRPC and QQP are selected by accuracy, as in the dev rows of the
# paper's table 9; the first split of several is the main one (MNLI: matched).
GLUE: dict[str, Classification] = {
    task.name: task
    for task in (
        Classification(
            name="cola", title="CoLA", labels=_BINARY, metrics=("mcc", "accuracy"), inputs=1,
            source=GlueFiles(
                "CoLA", "cola", ("sentence",),
                labelled=Columns((Column(3, "sentence"),), Column(1, "label"), header=False),
                test=_ONE_SENTENCE,
            ),
        ),
        Classification(
            name="sst2", title="SST-2", labels=_BINARY, metrics=("accuracy",), inputs=1,
            source=GlueFiles(
                "SST-2", "sst2", ("sentence",),
                labelled=Columns((Column(0, "sentence"),), Column(1, "label")),
                test=_ONE_SENTENCE,
            ),
        ),
        Classification(
            name="mrpc", title="MRPC", labels=_BINARY, metrics=("accuracy", "f1"), inputs=2,
            source=GlueFiles(
                "MRPC", "mrpc", ("sentence1", "sentence2"),
                labelled=Columns(_PARAPHRASES, Column(0, "Quality")),
                test=Columns(_PARAPHRASES, id=_INDEX),
            ),
        ),
        Classification(
            name="stsb", title="STS-B", labels=(), metrics=("pearson", "spearman"), inputs=2,
            source=GlueFiles(
                "STS-B", "stsb", ("sentence1", "sentence2"),
                labelled=Columns(_SIMILAR, Column(-1, "score"), _INDEX),
                test=Columns(_SIMILAR, id=_INDEX),
            ),
            value_range=(0.0, 5.0),
        ),
        Classification(
            name="qqp", title="QQP", labels=_BINARY, metrics=("accuracy", "f1"), inputs=2,
            source=GlueFiles(
                "QQP", "qqp", ("question1", "question2"),
                labelled=Columns(
                    (Column(3, "question1"), Column(4, "question2")), Column(5, "is_duplicate"), _QQP_ID
                ),
                test=Columns((Column(1, "question1"), Column(2, "question2")), id=_QQP_ID),
                skip_short=True,
            ),
        ),
        Classification(
            name="mnli", title="MNLI", labels=_INFERENCE, metrics=("accuracy",), inputs=2,
            source=GlueFiles(
                "MNLI", "mnli", ("premise", "hypothesis"),
                labelled=Columns(_PREMISE, Column(-1, "gold_label"), _INDEX),
                test=Columns(_PREMISE, id=_INDEX),
            ),
            dev_splits=("dev_matched", "dev_mismatched"),
            test_splits=("test_matched", "test_mismatched"),
        ),
        Classification(
            name="qnli", title="QNLI", labels=_ENTAILMENT, metrics=("accuracy",), inputs=2,
            source=GlueFiles(
                "QNLI", "qnli", ("question", "sentence"),
                labelled=Columns(_QUESTION, Column(-1, "label"), _INDEX),
                test=Columns(_QUESTION, id=_INDEX),
            ),
        ),
        Classification(
            name="rte", title="RTE", labels=_ENTAILMENT, metrics=("accuracy",), inputs=2,
            source=GlueFiles(
                "RTE", "rte", ("sentence1", "sentence2"),
                labelled=_INDEXED_PAIR,
                test=Columns(_SENTENCES, id=_INDEX),
            ),
        ),
        Classification(
            name="wnli", title="WNLI", labels=_BINARY, metrics=("accuracy",), inputs=2,
            source=GlueFiles(
                "WNLI", "wnli", ("sentence1", "sentence2"),
                labelled=_INDEXED_PAIR,
                test=Columns(_SENTENCES, id=_INDEX),
            ),
        ),
        # GLUE's diagnostics (§4): unlabelled in the benchmark's own folder, labelled as a file beside it.
        Classification(
            name="ax", title="AX", labels=_INFERENCE, metrics=("mcc",), inputs=2,
            source=GlueFiles(
                "diagnostic", "ax", ("premise", "hypothesis"),
                labelled=Columns(_DIAGNOSED, Column(7, "Label")),
                test=Columns(_SENTENCES, id=_INDEX),
                files={"dev": "diagnostic-full", "test": "diagnostic"},
            ),
            train_split=None,
            classifier_of="mnli",
        ),
    )
}  # fmt: skip

# The nine whose mean is the GLUE score; the diagnostics do not count.
SCORED = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
