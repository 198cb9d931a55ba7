"""Build a domain's data set from SST-2: its training phrases without labels as text, and the labeled table.

    python -m benchmarks.domain.sst2 glue --out domain-sst2

The table has at most 20,000 training rows; `data.train_examples` in a recipe selects fewer. The dev rows are GLUE's.
Sentences of dev rows are removed from the text and from the training rows.
"""

from __future__ import annotations

from typing import Annotated

import typer

from albert_cli import console
from albert_cli.cli.app import command
from albert_cli.cli.options import AsJson, Debug, Out, Quiet
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.registry import find_task
from benchmarks.domain.dataset import MAX_TRAIN_ROWS, LabeledText, format_facts, shuffle_rows, write_dataset

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@command(app)
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
    rows: dict[str, list[LabeledText]] = {"train": [], "dev": []}
    for split, split_rows in rows.items():
        for example in task.read(split, glue):
            split_rows.append(LabeledText(example.text_a.strip(), task.labels[int(example.label or 0)]))
    dev_texts = {row.text for row in rows["dev"]}
    train = [row for row in shuffle_rows(rows["train"]) if row.text not in dev_texts]
    facts = write_dataset(out, dict.fromkeys(row.text for row in train), train[:MAX_TRAIN_ROWS], rows["dev"])
    console.print_result(vars(facts), format_facts(facts))


if __name__ == "__main__":
    app()
