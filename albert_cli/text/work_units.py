"""Sources to portions of work, and which of them a job of an array does: the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias, TypeVar

from albert_cli.errors import ConfigError
from albert_cli.text.corpus import Document, hash_part, read_part
from albert_cli.text.lines import ReadCounter, ReadSettings, SourcePart, file_signature
from albert_cli.text.sources import resolve_sources

ArrayJob: TypeAlias = tuple[int, int] | None  # the i-th of n
WORK_UNIT_BYTES = 32 << 20  # bytes
_MAX_WORK_UNITS = 8192  # portions, of six files each once they are shards; Linux lets a process map 65,530
_COMPRESSION_RATIO = 4  # text is about so much larger than its compressed file


@dataclass(frozen=True)
class WorkUnit:
    """Parts of sources of one weight, read one after the other; number: its place in the order of the text."""

    parts: tuple[SourcePart, ...]
    number: int

    @property
    def weight(self) -> float:
        """How often the text is used in a pass."""
        return self.parts[0].source.weight

    @property
    def size(self) -> int:
        """Bytes of the sources as they lie on the disk; 0 where that is not known."""
        return sum((p.stamp[0] if p.end is None else p.end) - p.start for p in self.parts if p.stamp is not None)

    @property
    def text_size(self) -> int:
        """About how many bytes of text that is."""
        return self.size * (_COMPRESSION_RATIO if self.parts[0].source.compression else 1)

    @property
    def is_stream(self) -> bool:
        """Whether the text comes from stdin, which can be read once only and by this process only."""
        return any(part.source.kind == "stdin" for part in self.parts)

    @property
    def is_by_name(self) -> bool:
        """Whether it holds a data set of the Hub, whose bytes nobody hashes."""
        return any(part.source.kind == "hub" for part in self.parts)

    @property
    def sources(self) -> dict[str, Any]:
        """The parts as a report names them, without their hash."""
        described: list[dict[str, Any]] = []
        for part in self.parts:
            described.append({"source": part.source.name})
            if part.source.kind in ("squad-answers", "race"):  # the same files hold other text by another kind
                described[-1]["kind"] = part.source.kind
            if part.stamp and part.source.can_be_split and (part.start or part.end is not None):
                described[-1] |= {"start": part.start, "end": part.end or part.stamp[0]}
            if part.stamp:
                described[-1]["bytes"] = part.stamp[0]
        return {"parts": described, "weight": self.weight}

    def documents(self, settings: ReadSettings, tally: ReadCounter) -> Iterator[Document]:
        """The documents, each once."""
        return chain.from_iterable(read_part(part, settings, tally) for part in self.parts)

    def sha256(self) -> str | None:
        """The hash of the text as it lies on the disk; None for a data set of the Hub, which goes by its name."""
        if self.is_by_name:
            return None
        tally = ReadCounter()
        for part in self.parts:
            hash_part(part, tally)
        return str(tally.sha256.hexdigest())


def split_sources(sources: Sequence[str], size: int = WORK_UNIT_BYTES) -> list[WorkUnit]:
    """The portions, in the order of the sources.

    A plain `.txt` or `.jsonl` file is read in parts of `size` bytes (of a very large corpus twice, four times as many),
    any other large file is a portion, small files that follow one another are put together. Nothing is opened.
    """
    found = [(source, file_signature(source.path) if source.path else None) for source in resolve_sources(sources)]
    total = sum(now[0] for _, now in found if now)
    while total > _MAX_WORK_UNITS * size:
        size *= 2
    groups: list[list[SourcePart]] = []
    room = -1  # bytes that the last group still takes of small files
    for source, now in found:
        length = (now[0] if now else size) * (_COMPRESSION_RATIO if source.compression else 1)
        if length >= size:  # a stream, or a large file
            starts = range(0, now[0], size) if now and source.can_be_split else [0]
            groups += [
                [SourcePart(source, start, start + size if start < starts[-1] else None, now)] for start in starts
            ]
            room = -1
        elif length > room or groups[-1][0].source.weight != source.weight:
            groups.append([SourcePart(source, stamp=now)])
            room = size - length
        else:
            groups[-1].append(SourcePart(source, stamp=now))
            room -= length
    return [WorkUnit(tuple(parts), number) for number, parts in enumerate(groups)]


# ---------------------------------------------------------------- arrays of jobs


P = TypeVar("P", bound=WorkUnit)


def parse_array_job(text: str | None, environment: Mapping[str, str]) -> ArrayJob:
    """What `--task` says: `I/N` (the I-th of N jobs, from 0) or `auto`; raises `ConfigError` for what cannot be."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None and text != "auto":
        raise ConfigError(f"--task {text}: not of the form I/N", "for example 0/8 to 7/8, or auto")
    index, count = (int(match[1]), int(match[2])) if match else _read_array_variables(environment)
    if not 0 <= index < count:
        hint = "jobs count from 0; --task I/N names one"
        raise ConfigError(f"--task {text}: job {index} of {count} does not exist", hint)
    return index, count


def _read_array_variables(environment: Mapping[str, str]) -> tuple[int, int]:
    """The number of this job in its array of SLURM's or Kubernetes's, from 0, and how many there are."""
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


def select_array_job(portions: Sequence[P], index: int, count: int) -> list[P]:
    """Those of one job, large ones first: so all take about equally long. Raises `ConfigError` where one is stdin."""
    if any(portion.is_stream for portion in portions):
        raise ConfigError("stdin cannot be shared by several jobs", "write it to a file first, or omit --task")
    return sorted(portions, key=lambda portion: -portion.size)[index::count]
