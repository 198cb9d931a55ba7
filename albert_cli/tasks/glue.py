"""GLUE (Wang et al., arXiv 1804.07461) as published: one folder a task, tab-separated, quoting off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from albert_cli import console
from albert_cli.errors import InputError, MissingData
from albert_cli.tasks.hub import is_hub, read_hub
from albert_cli.tasks.rows import Rows, check_folder, read_delimited
from albert_cli.tasks.task import Example, Task

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
    files: Mapping[str, str] = field(default_factory=dict)

    def read(self, task: Task, split: str, data: str | None) -> list[Example]:
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
            rows = _without_short_rows(rows, width)
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

    def _from_hub(self, task: Task, split: str, source: str) -> list[Example]:
        source = f"{HUB}:{self.config}" if source == HUB else source
        rows = read_hub(source, split.replace("dev", "validation"))
        wanted = (*self.hub_texts, "label")
        missing = [name for name in wanted if name not in rows.columns]
        if missing:
            there = ", ".join(rows.columns)
            raise InputError(f"{rows.origin}: no column {missing[0]!r}; it has {there}", f"wanted: {', '.join(wanted)}")
        place = rows.columns.index("label")
        names = rows.names.get("label", ())
        if task.labels and not set(names) <= set(task.labels):
            # CoLA, SST-2, MRPC, QQP and WNLI: the files say 0 and 1, the Hub has names for the same two.
            for row in rows.cells:
                row[place] = str(names.index(row[place])) if row[place] in names else row[place]
        texts = tuple(Column(rows.columns.index(name), name) for name in self.hub_texts)
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


def _without_short_rows(rows: Rows, width: int) -> Rows:
    kept = [i for i, row in enumerate(rows.cells) if len(row) >= width]
    skipped = len(rows.cells) - len(kept)
    if skipped:
        console.note(f"{rows.origin}: {skipped} rows with fewer than {width} fields are left out")
    return Rows(rows.origin, rows.columns, [rows.cells[i] for i in kept], [rows.lines[i] for i in kept])


def _examples(task: Task, rows: Rows, columns: Columns, *, is_labelled: bool) -> list[Example]:
    if not rows.cells:
        raise InputError(f"{rows.origin}: holds no examples", "was it written to the end?")
    first, *second = (column.place for column in columns.texts)
    label, identifier = columns.label, columns.id
    return [
        Example(
            text_a=row[first],
            text_b=row[second[0]] if second else None,
            label=task.parse_label(row[label.place], rows.where(i)) if is_labelled and label else None,
            id=row[identifier.place] if identifier else str(i),
        )
        for i, row in enumerate(rows.cells)
    ]
