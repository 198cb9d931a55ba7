"""JSON files of measurements that a benchmark extends: a stopped command continues where it was."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from albert_cli import config, store
from albert_cli.errors import ConfigError

JSON = "bench.json"
MARKDOWN = "bench.md"


class Measurements(TypedDict, total=False):
    """The file's content: the conditions, and what was measured by name."""

    conditions: dict[str, Any]
    measured: dict[str, Any]


def load_previous(out: Path, conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an earlier call measured in `out`; raise `ConfigError` if it was under other conditions."""
    file = out / JSON
    if not file.exists():
        return {}
    previous = store.read_record(file, Measurements)
    if previous["conditions"] != conditions:
        differences = "; ".join(config.list_differences(previous["conditions"], conditions))
        raise ConfigError(f"{out}: was measured under other conditions: {differences}", "choose another --out")
    return previous["measured"]


def save(out: Path, conditions: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    """Write all measurements so far."""
    store.write_json(out / JSON, {"conditions": conditions, "measured": measured})
