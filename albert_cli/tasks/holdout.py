"""Hold out a part of the training file as dev data, for data sets without a dev file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval

T = TypeVar("T")


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
