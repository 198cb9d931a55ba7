"""Read the splits of a data set; without a dev file, a part of the training file is held out as dev data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, TypeVar

from albert_cli import console
from albert_cli.errors import InputError, MissingDataError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.tasks.base import TaskInfo

T = TypeVar("T")


@dataclass(frozen=True)
class SplitFiles:
    """The files of a data set by split; `data` is the value of `--data`, None without it."""

    unit_name: ClassVar[str]  # as in `hold_out_dev`
    dev_remedy: ClassVar[str]
    files: Mapping[str, str] = field(hash=False)  # a dict cannot be hashed
    data: str | None

    @property
    def is_single_file(self) -> bool:
        """True if `data` is a file, which is listed as train; training holds out a part of it, scoring uses all."""
        # A single file is the only split. The files of a folder, and those of the Hub, have other names than `data`.
        return self.data is not None and self.files == {"train": str(Path(self.data))}

    @property
    def may_be_for_scoring(self) -> bool:
        """True if the data may be meant only to score a finished model: a single file, or files without train."""
        return self.is_single_file or "train" not in self.files

    def is_predicted(self, split: str) -> bool:
        """Return True if a model predicts examples of a split's file: without a dev file, also a part of train."""
        return split != "train" or "dev" not in self.files

    def read_split(
        self, task: TaskInfo, split: str, read_file: Callable[[TaskInfo, str], list[T]], fraction: float, key: str = ""
    ) -> list[T]:
        """Read a split by `read_file`; without a dev file, hold out the `fraction` of train's examples as dev.

        With `task.scores_whole_file` all examples of a single file are dev, and reading train raises
        `MissingDataError`. `key` is the beginning of each example's key, which selects the examples of dev.
        """
        if "dev" in self.files or split == "test":
            return read_file(task, split)
        examples = read_file(task, "train")
        origin = self.files["train"]
        if task.scores_whole_file and self.is_single_file:
            if split == "train":
                raise MissingDataError(f"{origin}: scored as a whole, so there is no training data")
            return examples
        keys = [f"{key}{index}" for index in range(len(examples))]
        return hold_out_dev(
            split, examples, keys, fraction, origin=origin, unit_name=self.unit_name, remedy=self.dev_remedy
        )


def hold_out_dev(
    split: str,
    examples: Sequence[T],
    unit_keys: Sequence[str],
    fraction: float,
    *,
    origin: str,
    unit_name: str,
    remedy: str,
) -> list[T]:
    """Return the part of the examples that belongs to `split` ("train" or "dev").

    A unit is what is held out whole, such as a row or an article; `unit_keys` has the key of each example's unit. Dev
    consists of the units whose keys have the smallest hashes: the `fraction` of all units, at least one and never all.
    `origin`, `unit_name` and `remedy` are for messages. Raises `InputError` if there is only one unit.
    """
    units = sorted(set(unit_keys))
    dev_count = min(len(units) - 1, max(1, round(len(units) * fraction)))
    dev_units = set(sorted(units, key=hash_to_unit_interval)[:dev_count])
    if not dev_units:
        raise InputError(f"{origin}: a single {unit_name} cannot be split into train and dev", remedy)
    is_dev = split == "dev"
    if is_dev:
        console.info(f"{origin}: no dev data, so {len(dev_units)} of {len(units)} {unit_name}s are held out")
    return [example for example, key in zip(examples, unit_keys, strict=True) if (key in dev_units) == is_dev]
