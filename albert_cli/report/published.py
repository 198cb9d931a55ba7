"""Scores on dev that were published for ALBERT and what it is compared with; all of far larger training than one's own.

ALBERT v1 and v2 are the rows of the README of google-research/albert. BERT-large, XLNet, RoBERTa and ALBERT-xxlarge at
1.5 M steps are of tables 9 and 10 of the paper (arXiv 1909.11942), BERT-large's RACE of table 2.
"""

from __future__ import annotations

from collections.abc import Sequence

from albert_cli.tasks.spec import published_metrics

Scores = dict[str, dict[str, float]]  # task -> metric -> score times 100, the metrics those of `published_metrics`


def row(tasks: Sequence[str], cells: Sequence[str]) -> Scores:
    """Scores as a table prints them, of which SQuAD has two in a cell: `F1/EM`; none where it prints a dash."""
    return {
        task: dict(zip(published_metrics(task), map(float, cell.split("/")), strict=True))
        for task, cell in zip(tasks, cells, strict=True)
        if cell != "–"
    }


_GLUE = ("mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb", "squad1", "squad2", "race")
_FIVE = ("squad1", "squad2", "mnli", "sst2", "race")
PUBLISHED: dict[str, Scores] = {
    model: row(tasks, cells.split())
    for tasks, model, cells in (
        (_GLUE, "BERT-large", "86.6 92.3 91.3 70.4 93.2 88.0 60.6 90.0 90.9/84.1 81.8/79.0 73.9"),
        (_GLUE, "XLNet-large", "89.8 93.9 91.8 83.8 95.6 89.2 63.6 91.8 94.5/89.0 88.8/86.1 –"),
        (_GLUE, "RoBERTa-large", "90.2 94.7 92.2 86.6 96.4 90.9 68.0 92.4 94.6/88.9 89.4/86.5 –"),
        (_FIVE, "ALBERT-base v1", "89.3/82.3 80.0/77.1 81.6 90.3 64.0"),
        (_FIVE, "ALBERT-base v2", "90.2/83.2 82.1/79.3 84.6 92.9 66.8"),
        (_FIVE, "ALBERT-large v2", "91.8/85.2 84.9/81.8 86.5 94.9 75.2"),
        (_FIVE, "ALBERT-xlarge v2", "92.9/86.4 87.9/84.1 87.9 95.4 80.7"),
        (_FIVE, "ALBERT-xxlarge v1", "94.8/89.3 90.2/87.4 90.8 96.9 86.5"),
        (_FIVE, "ALBERT-xxlarge v2", "94.6/89.1 89.8/86.9 90.6 96.8 86.8"),
        (_GLUE, "ALBERT-xxlarge, 1.5 M steps", "90.8 95.3 92.2 89.2 96.9 90.9 71.4 93.0 94.8/89.3 90.2/87.4 –"),
    )
}
