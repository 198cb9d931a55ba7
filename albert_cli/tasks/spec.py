"""The tasks known by name, a row each: labels in the reference's order, metrics with the main one first."""

from __future__ import annotations

from albert_cli.config import suggestion
from albert_cli.errors import ConfigError
from albert_cli.tasks.glue import Column, Columns, GlueFiles
from albert_cli.tasks.task import Example, Task, fingerprint

__all__ = ["SCORED", "TASKS", "Example", "Task", "find_task", "fingerprint"]

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
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "cola", "CoLA", _BINARY, ("mcc", "accuracy"), 1,
            GlueFiles(
                "CoLA", "cola", ("sentence",),
                labelled=Columns((Column(3, "sentence"),), Column(1, "label"), header=False),
                test=_ONE_SENTENCE,
            ),
        ),
        Task(
            "sst2", "SST-2", _BINARY, ("accuracy",), 1,
            GlueFiles(
                "SST-2", "sst2", ("sentence",),
                labelled=Columns((Column(0, "sentence"),), Column(1, "label")),
                test=_ONE_SENTENCE,
            ),
        ),
        Task(
            "mrpc", "MRPC", _BINARY, ("accuracy", "f1"), 2,
            GlueFiles(
                "MRPC", "mrpc", ("sentence1", "sentence2"),
                labelled=Columns(_PARAPHRASES, Column(0, "Quality")),
                test=Columns(_PARAPHRASES, id=_INDEX),
            ),
        ),
        Task(
            "stsb", "STS-B", (), ("pearson", "spearman"), 2,
            GlueFiles(
                "STS-B", "stsb", ("sentence1", "sentence2"),
                labelled=Columns(_SIMILAR, Column(-1, "score"), _INDEX),
                test=Columns(_SIMILAR, id=_INDEX),
            ),
            kind="regression",
            value_range=(0.0, 5.0),
        ),
        Task(
            "qqp", "QQP", _BINARY, ("accuracy", "f1"), 2,
            GlueFiles(
                "QQP", "qqp", ("question1", "question2"),
                labelled=Columns(
                    (Column(3, "question1"), Column(4, "question2")), Column(5, "is_duplicate"), _QQP_ID
                ),
                test=Columns((Column(1, "question1"), Column(2, "question2")), id=_QQP_ID),
                skip_short=True,
            ),
        ),
        Task(
            "mnli", "MNLI", _INFERENCE, ("accuracy",), 2,
            GlueFiles(
                "MNLI", "mnli", ("premise", "hypothesis"),
                labelled=Columns(_PREMISE, Column(-1, "gold_label"), _INDEX),
                test=Columns(_PREMISE, id=_INDEX),
            ),
            dev_splits=("dev_matched", "dev_mismatched"),
            test_splits=("test_matched", "test_mismatched"),
        ),
        Task(
            "qnli", "QNLI", _ENTAILMENT, ("accuracy",), 2,
            GlueFiles(
                "QNLI", "qnli", ("question", "sentence"),
                labelled=Columns(_QUESTION, Column(-1, "label"), _INDEX),
                test=Columns(_QUESTION, id=_INDEX),
            ),
        ),
        Task(
            "rte", "RTE", _ENTAILMENT, ("accuracy",), 2,
            GlueFiles(
                "RTE", "rte", ("sentence1", "sentence2"),
                labelled=_INDEXED_PAIR,
                test=Columns(_SENTENCES, id=_INDEX),
            ),
        ),
        Task(
            "wnli", "WNLI", _BINARY, ("accuracy",), 2,
            GlueFiles(
                "WNLI", "wnli", ("sentence1", "sentence2"),
                labelled=_INDEXED_PAIR,
                test=Columns(_SENTENCES, id=_INDEX),
            ),
        ),
        # GLUE's diagnostics (§4): unlabelled in the benchmark's own folder, labelled as a file beside it.
        Task(
            "ax", "AX", _INFERENCE, ("mcc",), 2,
            GlueFiles(
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
SCORED = tuple(name for name, task in TASKS.items() if task.train_split)

_NOT_YET = ("squad1", "squad2", "race")


def find_task(name: str) -> Task:
    """The task of a name of `TASKS`; one's own table is opened by `table.open_table`.

    Raises `ConfigError` for an unknown name, with the nearest known one, and for a task still to come.
    """
    if name in TASKS:
        return TASKS[name]
    if name in _NOT_YET:
        raise ConfigError(f"{name} is not available yet", f"available: {', '.join(TASKS)}, table")
    known = [*TASKS, *_NOT_YET, "table"]
    raise ConfigError(f"no task is called {name!r}", suggestion(name, known) or f"tasks: {', '.join(known)}")
