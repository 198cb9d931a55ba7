"""Build a domain's data set from SST-2: its training phrases without labels as text, and the labeled table.

    python -m benchmarks.domain.sst2 glue --out domain-sst2

The table has at most 20,000 training rows; `data.train_examples` in a recipe selects fewer. The dev rows are GLUE's.
The text and the training rows do not contain the sentences of the dev rows.
"""

from __future__ import annotations

from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import verb
from albert_cli.cli.options import AsJson, Debug, Out, Quiet
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.registry import find_task
from benchmarks.domain.dataset import MAX_TRAIN_ROWS, LabeledText, format_facts, shuffle_rows, write_dataset

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@verb(app)
def sst2(
    glue: Annotated[str, typer.Argument(metavar="GLUE", help="The folder of GLUE's data.")],
    out: Out,
    as_json: AsJson = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write SST-2's phrases as unlabeled text, one phrase per document, and as a labeled table.

    Example: python -m benchmarks.domain.sst2 glue --out domain-sst2
    """
    task = find_task("sst2")
    assert isinstance(task, Classification)
    dev = _read_rows(task, "dev", glue)
    dev_texts = {row.text for row in dev}
    train = [row for row in shuffle_rows(_read_rows(task, "train", glue)) if row.text not in dev_texts]
    phrases = dict.fromkeys(row.text for row in train)  # each text once
    facts = write_dataset(out, phrases, train[:MAX_TRAIN_ROWS], dev)
    console.print_result(vars(facts), format_facts(facts))


def _read_rows(task: Classification, split: str, glue: str) -> list[LabeledText]:
    """Read the rows of a split with the names of their classes."""
    rows = []
    for example in task.read(split, glue):
        assert example.label is not None
        rows.append(LabeledText(example.text_a.strip(), task.labels[int(example.label)]))
    return rows


if __name__ == "__main__":
    app()
