"""GLUE (Wang et al., arXiv 1804.07461) as published: one folder per task, tab-separated, quoting off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from albert_cli import console
from albert_cli.errors import InputError, MissingDataError
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.rows import TextTable, find_data_file, is_hub_source, read_delimited, read_hub_split

GLUE_ON_HUB = "hf:nyu-mll/glue"
_ID_COLUMNS = ("index", "id", "idx")


@dataclass(frozen=True)
class GlueFiles:
    """A task of GLUE: `folder/SPLIT.tsv` with the columns `texts` and `label`, or of `hub` what has the task's name.

    There the texts may be called `hub_texts`, and `test_texts` in the file of the test set. `--data hf:NAME:CONFIG`
    takes another data set of the Hub with the same columns; a task that is on none has no `hub`. `header` names the
    columns of labelled files that have no header line. `skip_short` leaves out rows with too few fields, as the
    reference does for QQP, whose questions hold line breaks; everywhere else such a row is an error. `files` names the
    files that are not called as their split.
    """

    folder: str
    texts: tuple[str, ...]
    label: str = "label"
    hub_texts: tuple[str, ...] = ()
    test_texts: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    skip_short: bool = False
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    hub: str | None = GLUE_ON_HUB

    def read(self, task: Classification, split: str, data: str | None) -> list[TextExample]:
        is_test = split in task.test_splits
        if data is None and self.hub is None:
            raise MissingDataError(
                f"{task.name}: its files are not on the Hub", f"--data DIR, which holds {self.folder}/"
            )
        if data is None or is_hub_source(data):
            source = f"{self.hub}:{task.name}" if data in (None, self.hub) else str(data)
            # Of CoLA, SST-2, MRPC, QQP and WNLI the files say 0 and 1, the Hub has names for the same two.
            rows = read_hub_split(source, split.replace("dev", "validation"), task.labels)
            columns = [*(self.hub_texts or self.texts), "label"]
        else:
            rows = self._from_file(task, Path(data), split, () if is_test else self.header)
            columns = [*(self.test_texts or self.texts)] if is_test else [*self.texts, self.label]
        first, *others = rows.places(columns)
        second, gold = others[0] if len(self.texts) == 2 else None, None if is_test else others[-1]
        identifier = next((rows.columns.index(name) for name in _ID_COLUMNS if name in rows.columns), None)
        ids = rows.ids(identifier, is_unique=split != task.train_split)
        return [
            TextExample(
                text_a=row[first],
                text_b=None if second is None else row[second],
                label=None if gold is None else task.parse_label(row[gold], rows.where(i)),
                id=ids[i],
            )
            for i, row in enumerate(rows.cells)
        ]

    def _from_file(self, task: Classification, data: Path, split: str, header: tuple[str, ...]) -> TextTable:
        file = f"{self.files.get(split, split)}.tsv"
        path = find_data_file(data, (f"{self.folder}/{file}", file), self.hub)
        rows = read_delimited(path, header=not header)
        if header:
            if {*self.texts, self.label} & set(rows.cells[0]):
                raise InputError(
                    f"{path}:1: a header, where {task.title} is published without", "remove the first line"
                )
            rows = replace(rows, columns=header)
        if self.skip_short:
            whole = [i for i, row in enumerate(rows.cells) if len(row) >= len(rows.columns)]
            if skipped := len(rows.cells) - len(whole):
                console.info(f"{path}: {skipped} rows with fewer than {len(rows.columns)} fields are left out")
            return replace(rows, cells=[rows.cells[i] for i in whole], lines=[rows.lines[i] for i in whole])
        rows.check_widths()
        return rows


# ---------------------------------------------------------------- the tasks, labels in the reference's order

_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_INFERENCE = ("contradiction", "entailment", "neutral")
_SENTENCES = ("sentence1", "sentence2")
_MNLI = ("premise", "hypothesis")
_COLA = ("source", "label", "mark", "sentence")

# Wang et al., arXiv 1804.07461, table 1. MRPC and QQP are selected by accuracy, as in the dev rows of the
# paper's table 9; the first split of several is the main one (MNLI: matched).
GLUE: dict[str, Classification] = {
    task.name: task
    for task in (
        Classification(
            name="cola", title="CoLA", labels=_BINARY, metrics=("mcc", "accuracy"), inputs=1,
            source=GlueFiles("CoLA", ("sentence",), header=_COLA),
        ),
        Classification(
            name="sst2", title="SST-2", labels=_BINARY, metrics=("accuracy",), inputs=1,
            source=GlueFiles("SST-2", ("sentence",)),
        ),
        Classification(
            name="mrpc", title="MRPC", labels=_BINARY, metrics=("accuracy", "f1"),
            source=GlueFiles("MRPC", ("#1 String", "#2 String"), "Quality", hub_texts=_SENTENCES),
        ),
        Classification(
            name="stsb", title="STS-B", metrics=("pearson", "spearman"), value_range=(0.0, 5.0),
            source=GlueFiles("STS-B", _SENTENCES, "score"),
        ),
        Classification(
            name="qqp", title="QQP", labels=_BINARY, metrics=("accuracy", "f1"),
            source=GlueFiles("QQP", ("question1", "question2"), "is_duplicate", skip_short=True),
        ),
        Classification(
            name="mnli", title="MNLI", labels=_INFERENCE, metrics=("accuracy",),
            source=GlueFiles("MNLI", _SENTENCES, "gold_label", hub_texts=_MNLI),
            dev_splits=("dev_matched", "dev_mismatched"), test_splits=("test_matched", "test_mismatched"),
        ),
        Classification(
            name="qnli", title="QNLI", labels=_ENTAILMENT, metrics=("accuracy",),
            source=GlueFiles("QNLI", ("question", "sentence")),
        ),
        Classification(
            name="rte", title="RTE", labels=_ENTAILMENT, metrics=("accuracy",),
            source=GlueFiles("RTE", _SENTENCES),
        ),
        Classification(
            name="wnli", title="WNLI", labels=_BINARY, metrics=("accuracy",),
            source=GlueFiles("WNLI", _SENTENCES),
        ),
        # GLUE's diagnostics (§4): unlabelled in the benchmark's own folder, labelled as a file beside it.
        Classification(
            name="ax", title="AX", labels=_INFERENCE, metrics=("mcc",), train_split=None, classifier_of="mnli",
            source=GlueFiles(
                "diagnostic", ("Premise", "Hypothesis"), "Label", hub_texts=_MNLI, test_texts=_SENTENCES,
                files={"dev": "diagnostic-full", "test": "diagnostic"},
            ),
        ),
    )
}  # fmt: skip

# The nine whose mean is the GLUE score; the diagnostics do not count.
GLUE_SCORE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
