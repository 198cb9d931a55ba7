"""Hold out development data from a training file that comes without any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from albert_cli import console
from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval

T = TypeVar("T")


def hold_out_dev(
    split: str, examples: Sequence[T], units: Sequence[str], fraction: float, origin: str, unit: str, remedy: str
) -> list[T]:
    """Return the train or dev part of examples, by holding out a fraction of their units (rows, articles).

    The units with the smallest hashes are dev: at least one and never all. `unit` is a unit's name in messages.
    Raises `InputError` with `remedy` if there is only one unit.
    """
    all_units = sorted(set(units))
    size = min(len(all_units) - 1, max(1, round(len(all_units) * fraction)))
    dev_units = set(sorted(all_units, key=hash_to_unit_interval)[:size])
    if not dev_units:
        raise InputError(f"{origin}: a single {unit} cannot be split into train and dev", remedy)
    if split == "dev":
        console.info(f"{origin}: no dev data, so {len(dev_units)} of {len(all_units)} {unit}s are held out")
        return [example for example, key in zip(examples, units, strict=True) if key in dev_units]
    return [example for example, key in zip(examples, units, strict=True) if key not in dev_units]
