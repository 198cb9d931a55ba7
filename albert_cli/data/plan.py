"""From sources to tasks: the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.data.tokenise import BuildSettings, Task
from albert_cli.text.lines import Part
from albert_cli.text.parts import cut


def plan(sources: Sequence[str], vocabulary_dir: Path, out: Path, settings: BuildSettings) -> list[Task]:
    """The tasks of a build, in the order of the sources: one for each portion of them."""
    identity = store.fingerprint(vocabulary_dir)
    tasks = []
    for portion in cut(sources, settings.split_bytes):
        name = _name(portion.number, portion.parts)
        tasks.append(
            Task(portion.parts, portion.number, name, out / "shards" / name, vocabulary_dir, identity, settings)
        )
    return tasks


def _name(number: int, parts: Sequence[Part]) -> str:
    """`00007-wiki.jsonl-00000256M`: place in the order, first file, and where in it the part begins."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", parts[0].source.name.rstrip("/").rpartition("/")[2]).strip("-.")
    name = f"{number:05d}-{stem[:40]}"
    if len(parts) > 1:
        return f"{name}-and-{len(parts) - 1}-more"
    is_split = parts[0].start or parts[0].end is not None
    return f"{name}-{parts[0].start >> 20:08d}M" if is_split else name


def request(tasks: Sequence[Task]) -> dict[str, Any]:
    """What was asked for: the part of `data.json` that tells whether the same is asked again."""
    settings = asdict(tasks[0].settings)
    return {"vocabulary": tasks[0].vocabulary, "settings": settings, "sources": [task.sources for task in tasks]}
