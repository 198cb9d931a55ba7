"""The settings of a quickstart: `FULL` and `SMOKE` for the bundled data, `plan_own_data` for the user's text and table.

`run_quickstart` runs the steps with these settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from albert_cli import config
from albert_cli.errors import ConfigError, InputError
from albert_cli.inference.table_predictions import check_test_file
from albert_cli.quickstart.bundled import BundledDataSettings
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.table import open_table
from albert_cli.text.sources import STDIN, resolve_sources
from albert_cli.training.settings import parse_duration
from albert_cli.training.task_recipe import load_recipe

FINETUNE_RECIPE: Final = "mini/table"
# The defaults for the user's data; see `QuickstartPlan`.
_DEFAULT_LABEL_COUNTS: Final = (100, 500, 2_000)
_DEFAULT_TIME: Final = "10m"
_DEFAULT_VOCABULARY: Final = 8_000
_SAMPLE_SIZE: Final = 200_000
_MIN_DEV_ROWS: Final = 20  # with 20 rows, each row is 5 points of accuracy


@dataclass(frozen=True)
class TextOptions:
    """The options of `albert vocab` and `albert data` that depend on the language of the text."""

    language: str = "en"
    lowercase: bool = True
    strip_accents: bool = True
    keep_zwnj: bool = False

    def cleaning_flags(self) -> list[str]:
        """Return the flags of `albert vocab` that differ from its defaults."""
        flags = {
            "--no-lowercase": not self.lowercase,
            "--no-strip-accents": not self.strip_accents,
            "--keep-zwnj": self.keep_zwnj,
        }
        return [flag for flag, is_set in flags.items() if is_set]


@dataclass(frozen=True)
class QuickstartPlan:
    """The settings of all steps. The output directory records them: a quickstart resumes only with equal settings."""

    text: tuple[str, ...]  # sources of unlabeled text; for bundled data, files below the output directory
    table: str  # the labeled table; for bundled data, a folder below the output directory
    title: str  # of the table as a task
    recipe: str  # of pretraining
    max_time: str  # of pretraining, such as 80s
    vocabulary_size: int  # number of tokens
    sample_size: int  # sentences that the vocabulary is trained on
    label_counts: tuple[int, ...]  # numbers of labeled training examples; a model is fine-tuned and scored for each
    runs: int = 3  # fine-tuning seeds
    text_options: TextOptions = TextOptions()
    overrides: tuple[str, ...] = ()  # of the fine-tuning recipe (`-s`), such as the names of the table's columns
    bundled: BundledDataSettings | None = None


FULL: Final = QuickstartPlan(
    text=("corpus.jsonl",),
    table="task",
    title="which package?",
    recipe="mini/docs",
    max_time="80s",
    vocabulary_size=4_000,
    sample_size=40_000,
    label_counts=(125, 500, 2_000),
    bundled=BundledDataSettings("docs:", packages=8, heldout=0.25, train_sentences=2_000, test_sentences=2_000),
)
SMOKE: Final = replace(
    FULL,
    max_time="10s",
    vocabulary_size=1_500,
    sample_size=10_000,
    label_counts=(50, 125),
    runs=2,
    bundled=BundledDataSettings("docs:stdlib", packages=5, heldout=0.5, train_sentences=125, test_sentences=500),
)


def plan_own_data(
    text: Sequence[str],
    table: str,
    max_time: str | None = None,
    labels: str | None = None,
    size: int | None = None,
    overrides: Sequence[str] = (),
    text_options: TextOptions = TextOptions(),
) -> QuickstartPlan:
    """Return the plan for the user's own text and table.

    max_time, labels, size: the options `--max-time`, `--labels` and `--size`; None for the defaults. overrides: of the
    fine-tuning recipe. text_options: of the vocabulary and the shards. Raises `InputError` if a text is stdin, or if
    the table has no training data, too few dev rows or a damaged test file, and `ConfigError` if `max_time`, `labels`
    or an override is invalid.
    """
    max_time = max_time or _DEFAULT_TIME
    # The result is not used here. An invalid value must fail now, not when pretraining begins, after other steps.
    parse_duration(max_time, "--max-time")
    if any(source.name == STDIN for source in resolve_sources(text)):
        raise InputError(
            "--text -: stdin can be read once, but a quickstart reads it twice", "write it to a file first"
        )
    if any("data.train_examples" in config.flatten_override(override) for override in overrides):
        raise ConfigError("-s data.train_examples: --labels sets this key", "use --labels")
    settings = load_recipe(FINETUNE_RECIPE, overrides).table
    task = open_table(settings, table)
    if task.train_split is None:
        raise InputError(f"{table}: has no training data", "add a train file to --table")
    check_test_file(task)  # the last step reads it, hours after the first one
    rows = len(task.read(task.train_split, table))
    dev_rows = len(task.read(task.dev_splits[0], table))
    if dev_rows < _MIN_DEV_ROWS:
        raise InputError(
            f"{table}: {dev_rows} dev rows cannot tell models apart", f"use at least {_MIN_DEV_ROWS}, better 1,000"
        )
    return QuickstartPlan(
        text=tuple(text),
        table=table,
        title=settings.title,
        recipe="mini/wiki",
        max_time=max_time,
        vocabulary_size=size or _DEFAULT_VOCABULARY,
        sample_size=_SAMPLE_SIZE,
        label_counts=_choose_label_counts(labels, rows, table),
        text_options=text_options,
        overrides=tuple(overrides),
    )


def _choose_label_counts(labels: str | None, rows: int, table: str) -> tuple[int, ...]:
    """Return the numbers in `--labels`, sorted; without the option, the default numbers below the number of rows.

    rows: the number of training rows of the table. Raises `ConfigError` if `labels` is not a list of numbers from 1 to
    `rows`.
    """
    if labels is None:
        return tuple(count for count in _DEFAULT_LABEL_COUNTS if count < rows) or (rows,)
    try:
        counts = tuple(sorted({int(count) for count in labels.split(",")}))
    except ValueError:
        raise ConfigError(f"--labels {labels}: not a list of numbers", "for example --labels 100,500,2000") from None
    if counts[0] < 1:
        raise ConfigError(f"--labels {labels}: {counts[0]} is not a number of labels", "use numbers from 1")
    if counts[-1] > rows:
        raise ConfigError(f"--labels {counts[-1]}: {table} has {rows:,} training rows", f"use at most {rows}")
    return counts


def open_task(plan: QuickstartPlan) -> AnyTask:
    """Return the labeled table of a plan as a task, with the settings of the fine-tuning recipe."""
    return open_table(load_recipe(FINETUNE_RECIPE, plan.overrides).table, plan.table)
