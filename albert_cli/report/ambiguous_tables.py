"""Tell tables apart that have the same title: `make_titles_unique` adds a directory to their titles.

`table.title` is "table" by default, so results on several tables of a user often have one title. Two results are on the
same table only if their labels and their dev examples are equal. The dev examples are those in the saved predictions.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from albert_cli import store
from albert_cli.report.collect import Evaluation, short_names
from albert_cli.tasks.base import TEST_SUFFIX
from albert_cli.tasks.predictions import read_predictions
from albert_cli.tasks.registry import TASKS

# The keys of a prediction's line that depend on the example alone.
_EXAMPLE_KEYS: Final = ("id", "label", "answers", "title", "text", "text_pair", "question", "choices")


def make_titles_unique(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Add a directory to the titles of tables that have equal titles, but different labels or dev examples.

    The directory is the one that contains all results on the table. If this directory also contains results on another
    of these tables, the directory of the table's first result is used instead. Tasks of the registry keep their titles.
    """
    by_identity: dict[tuple[str, ...], list[Evaluation]] = defaultdict(list)
    for evaluation in evaluations:
        if evaluation.record.task not in TASKS:
            by_identity[evaluation.task_identity].append(evaluation)
    tables_by_title: dict[tuple[str, str], list[list[Evaluation]]] = defaultdict(list)
    for results in by_identity.values():
        record = results[0].record
        tables_by_title[record.task, record.title] += _split_by_dev_set(results)
    titles: dict[Path, str] = {}  # the new titles, by the path of a result
    for (_, title), tables in tables_by_title.items():
        if len(tables) > 1:
            folders = [_table_folder(table, tables) for table in tables]
            names = short_names(folders)
            for folder, table in zip(folders, tables, strict=True):
                titles |= dict.fromkeys((e.path for e in table), _add_to_title(title, names[folder]))
    return [_set_title(e, titles[e.path]) if e.path in titles else e for e in evaluations]


def _split_by_dev_set(results: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Divide results by their dev examples; unknown dev examples are those of the other results, if these agree."""
    by_dev_set: dict[str, list[Evaluation]] = defaultdict(list)
    for evaluation in results:
        by_dev_set[_fingerprint_dev_set(evaluation)].append(evaluation)
    if len(by_dev_set.keys() - {""}) < 2:
        return [list(results)]
    return list(by_dev_set.values())


def _fingerprint_dev_set(evaluation: Evaluation) -> str:
    """Return a hash of the dev examples in the predictions of the first run that saved any; "" if none did."""
    for folder in evaluation.folders:
        lines = read_predictions(folder)
        if lines:
            examples = [[line.get(key) for key in _EXAMPLE_KEYS] for line in lines]
            return store.hash_json({"examples": examples})
    return ""


def _table_folder(table: Sequence[Evaluation], tables: Sequence[Sequence[Evaluation]]) -> Path:
    """Return the directory that contains all results on a table, or that of the first one, if others are in it, too."""
    paths = [evaluation.path.resolve() for evaluation in table]
    folder = Path(os.path.commonpath(paths))
    other_paths = [evaluation.path.resolve() for other in tables if other is not table for evaluation in other]
    return paths[0] if any(path.is_relative_to(folder) for path in other_paths) else folder


def _add_to_title(title: str, name: str) -> str:
    """Return the title with a directory's name; the suffix of a task that is scored on its test set stays last."""
    suffix = TEST_SUFFIX if title.endswith(TEST_SUFFIX) else ""
    return f"{title.removesuffix(TEST_SUFFIX)} ({name}){suffix}"


def _set_title(evaluation: Evaluation, title: str) -> Evaluation:
    return replace(evaluation, record=evaluation.record.model_copy(update={"title": title}))
