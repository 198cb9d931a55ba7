"""Save measurements to a file, `bench.json`, one at a time, so that a stopped benchmark can resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from typing_extensions import TypedDict

from albert_cli import config, store
from albert_cli.errors import ConfigError

JSON_FILE: Final = "bench.json"
MARKDOWN_FILE: Final = "bench.md"  # the same measurements as tables, which the benchmarks write


class Measurements(TypedDict, total=False):
    """The content of the file: the conditions, and the measurements by name."""

    conditions: dict[str, Any]
    measured: dict[str, Any]


def load_previous(out: Path, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the measurements in the directory `out` by name; empty if there are none.

    Raises `ConfigError` if they were measured under other conditions.
    """
    file = out / JSON_FILE
    if not file.exists():
        return {}
    previous = store.read_record(file, Measurements)
    if previous["conditions"] != conditions:
        differences = "; ".join(config.list_differences(previous["conditions"], conditions))
        raise ConfigError(f"{out}: was measured under other conditions: {differences}", "choose another --out")
    return previous["measured"]


def save(out: Path, conditions: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Write the conditions and all measurements so far to the file in the directory `out`."""
    store.write_json(out / JSON_FILE, {"conditions": conditions, "measured": measured})
