"""The shape of a labelled task and of its examples."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from albert_cli.errors import ConfigError, InputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_BLANK = re.compile("_+")
Kind = Literal["classification", "regression", "choice", "span"]


@dataclass(frozen=True, slots=True)
class Example:
    """One text or pair of texts with its label: a class index, a value, or None where it is hidden."""

    text_a: str
    text_b: str | None
    label: int | float | None
    id: str


@dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A question about a passage (perhaps an empty one) with its options.

    `label` is the index of the right option, None where it is hidden; `group` names a part of the data that is scored
    apart, such as RACE's "middle" and "high".
    """

    id: str
    passage: str
    question: str
    options: tuple[str, ...]
    label: int | None
    group: str = ""

    @property
    def answers(self) -> list[str]:
        """The question with each option: in the place of its `_` (or `___`), or after it."""
        if "_" in self.question:
            parts = _BLANK.split(self.question)
            return [option.join(parts) for option in self.options]
        return [f"{self.question} {option}".strip() for option in self.options]


class Source(Protocol):
    """Where the examples of a task come from."""

    def read(self, task: Task, split: str, data: str | None) -> list[Any]:
        """All examples of a split, from `data` (a path, `hf:NAME`, or None for the source's own default).

        `Example`s for classes and values; other kinds have their own dataclasses, each with an `id`.
        """


@dataclass(frozen=True)
class Task:
    """A task as a row: what goes in, what comes out, and what is measured.

    `labels` are in the order of the head's outputs (empty for regression); the first of `metrics` selects
    the best checkpoint; `dev_splits` and `test_splits` name the further splits after the main one.
    `classifier_of` names the task whose fine-tuned models answer this one too: one without training data of its own, or
    a part of that task.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    inputs: int
    source: Source
    kind: Kind = "classification"
    value_range: tuple[float, float] = (-math.inf, math.inf)
    train_split: str | None = "train"
    dev_splits: tuple[str, ...] = ("dev",)
    test_splits: tuple[str, ...] = ("test",)
    classifier_of: str | None = None

    @property
    def output_names(self) -> tuple[str, ...]:
        """The columns of the head's logits by name: one a class, a single one for a value."""
        return ("score",) if self.kind == "regression" else self.labels

    @property
    def splits(self) -> tuple[str, ...]:
        """Every split that can be read."""
        return (*((self.train_split,) if self.train_split else ()), *self.dev_splits, *self.test_splits)

    def read(self, split: str, data: str | None = None) -> list[Any]:
        """All examples of a split; `dev` and `test` stand for the first of several (MNLI: matched).

        Raises `InputError` naming file and line for data that do not fit, `ConfigError` for an unknown split.
        """
        main = {"dev": self.dev_splits[:1], "test": self.test_splits[:1]}.get(split, ())
        split = main[0] if main else split
        if split not in self.splits:
            raise ConfigError(f"{self.name} has no split {split!r}", f"it has {', '.join(self.splits)}")
        return self.source.read(self, split, data)

    def parse_label(self, text: str, where: str) -> int | float:
        """A label as written in a file: the class's index, or the value.

        Raises `InputError` beginning with `where` (file and line) for a label outside the set or range.
        """
        if self.kind != "regression":
            try:
                return self.labels.index(text)
            except ValueError:
                hint = "correct the label, or leave the row out"
                raise InputError(f"{where}: label {text!r} is not one of {', '.join(self.labels)}", hint) from None
        try:
            value = float(text)
        except ValueError:
            raise InputError(f"{where}: label {text!r} is not a number", "correct it, or leave the row out") from None
        low, high = self.value_range
        if not math.isfinite(value) or not low <= value <= high:
            limits = "finite" if low == -math.inf else f"from {low:g} to {high:g}"
            raise InputError(f"{where}: label {text!r} is not {limits}", "correct it, or leave the row out")
        return value


def fingerprint(examples: Iterable[DataclassInstance]) -> str:
    """16 hexadecimal digits over all that examples say (texts, labels, ids) in order: equal for equal data."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(repr(dataclasses.astuple(example)).encode())
    return digest.hexdigest()[:16]
