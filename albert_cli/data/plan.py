"""From sources to tasks, and which of them a job of an array does: the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias

from albert_cli import store
from albert_cli.data.tokenise import BuildSettings, Task
from albert_cli.errors import ConfigError
from albert_cli.text.lines import Part, Stamp, stamp
from albert_cli.text.sources import Source, resolve

Share: TypeAlias = tuple[int, int] | Literal["merge"] | None
_MOST_PARTS = 8192  # of six files each; Linux lets a process map 65,530
_INFLATION = 4  # text is about so much larger than its compressed file


def plan(sources: Sequence[str], vocabulary_dir: Path, out: Path, settings: BuildSettings) -> list[Task]:
    """The tasks of a build, in the order of the sources.

    A plain `.txt` or `.jsonl` file is read in parts of `split_bytes`, which begin and end between documents;
    any other large file is a task; small files that follow one another are put together. The parts of a very
    large corpus are twice, four times... as large, so that there are not more of them than a process can map.
    Nothing is opened.
    """
    identity = store.fingerprint(vocabulary_dir)
    found = resolve(sources)
    stamps = [None if source.path is None else stamp(source.path) for source in found]
    size, total = settings.split_bytes, sum(now[0] for now in stamps if now)
    while total > _MOST_PARTS * size:
        size *= 2
    tasks = []
    for number, parts in enumerate(_groups(found, stamps, size)):
        name = _name(number, parts)
        tasks.append(Task(name, out / "shards" / name, vocabulary_dir, parts, identity, settings))
    return tasks


def _groups(sources: Sequence[Source], stamps: Sequence[Stamp | None], size: int) -> list[tuple[Part, ...]]:
    groups: list[tuple[Part, ...]] = []
    together: list[Part] = []
    filled = 0
    for source, now in zip(sources, stamps, strict=True):
        length = (now[0] if now else size) * (_INFLATION if source.compression else 1)
        is_small = now is not None and length < size
        if together and (not is_small or filled + length > size or together[0].source.weight != source.weight):
            groups.append(tuple(together))
            together, filled = [], 0
        if is_small:
            together.append(Part(source, stamp=now))
            filled += length
        elif source.can_be_split and now is not None:
            starts = range(0, now[0], size)
            groups += [(Part(source, s, s + size if s + size < now[0] else None, now),) for s in starts]
        else:
            groups.append((Part(source, stamp=now),))
    return [*groups, tuple(together)] if together else groups


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


# ---------------------------------------------------------------- arrays of jobs


def parse_share(text: str | None, environment: Mapping[str, str]) -> Share:
    """What `--task` says: `I/N` (the I-th of N jobs, from 0), `auto` (from SLURM or Kubernetes), or `merge`.

    Raises `ConfigError` for anything else, and where `auto` finds no array.
    """
    if text is None:
        return None
    if text == "merge":
        return "merge"
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None and text != "auto":
        raise ConfigError(f"--task {text}: not of the form I/N", "for example 0/8 to 7/8, or auto, or merge")
    index, count = (int(match[1]), int(match[2])) if match else _from_environment(environment)
    if not 0 <= index < count:
        hint = "jobs count from 0; --task I/N names one"
        raise ConfigError(f"--task {text}: job {index} of {count} does not exist", hint)
    return index, count


def _from_environment(environment: Mapping[str, str]) -> tuple[int, int]:
    """The number of this job in its array, from 0, and how many there are."""
    try:
        if "SLURM_ARRAY_TASK_ID" in environment:
            first = int(environment.get("SLURM_ARRAY_TASK_MIN", 0))
            step = int(environment.get("SLURM_ARRAY_TASK_STEP", 1))
            index = (int(environment["SLURM_ARRAY_TASK_ID"]) - first) // step
            return index, int(environment["SLURM_ARRAY_TASK_COUNT"])
        if "JOB_COMPLETION_INDEX" in environment:
            return int(environment["JOB_COMPLETION_INDEX"]), int(environment["JOB_COMPLETIONS"])
    except (KeyError, ValueError) as error:
        reason = f"{error.args[0]} is not set" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"--task auto: {reason}", "set it, or name the share: --task 0/8") from None
    hint = "it reads SLURM_ARRAY_TASK_ID and _COUNT, or JOB_COMPLETION_INDEX and JOB_COMPLETIONS; or --task 0/8"
    raise ConfigError("--task auto: this is no job of an array", hint)


def share_of(tasks: Sequence[Task], index: int, count: int) -> list[Task]:
    """The tasks of one job: large ones are dealt out first, so that the jobs take about equally long."""
    return sorted(tasks, key=lambda task: (-task.size, task.name))[index::count]
