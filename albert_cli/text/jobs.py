"""The sentences of a vocabulary, drawn by processes and by the jobs of an array: the same for any number of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import TypedDict

from albert_cli import console, machine, pool, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError
from albert_cli.text.parts import Portion, share_of
from albert_cli.text.sampling import Sample, draw_sample

if TYPE_CHECKING:
    from albert_cli.text.build_vocabulary import VocabularySettings

FOLDER = "samples"  # in a vocabulary's directory until all jobs are merged
REQUEST = "request.json"  # in what is being made: what was asked for
_REMEDY = "a smaller --sample-size or fewer --workers need less memory"
T = TypeVar("T")


class Asked(TypedDict):
    """What was asked for, of `request.json` and of a vocabulary's report."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]  # noqa: RUF012
    size: int
    sources: list[dict[str, Any]]


def draw_all(
    portions: Sequence[Portion], settings: VocabularySettings, workers: int
) -> tuple[Sample, list[str | None]]:
    """The sample of these portions, and the SHA-256 of each."""
    sample, hashes = Sample(settings.sample_size, settings.seed), dict[int, str | None]()
    done, total = 0, sum(portion.size for portion in portions)

    def arguments() -> tuple[Any, ...]:
        return settings.read, settings.language, sample.size, sample.seed, sample.limit

    with console.progress("reading", total or None) as progress:
        for portion, (part, digest) in _over(draw_sample, portions, workers, arguments):
            sample.merge(part)
            hashes[portion.number] = digest
            done += portion.size
            progress.update(done, f"{sample.read:,} sentences, {sample.characters / 1e6:.0f} M characters")
    return sample, [hashes[portion.number] for portion in portions]


def hashes_of(portions: Sequence[Portion], workers: int) -> list[str | None]:
    """The SHA-256 of each portion's text as it lies on the disk."""
    hashes = {portion.number: digest for portion, digest in _over(Portion.sha256, portions, workers)}
    return [hashes[portion.number] for portion in portions]


def _over(
    call: Callable[..., T], portions: Sequence[Portion], workers: int, arguments: Callable[[], tuple[Any, ...]] = tuple
) -> Iterator[tuple[Portion, T]]:
    """(portion, result) of each: this process takes what it alone can read or has in memory, a pool the rest."""
    here = [p for p in portions if any(part.source.kind in ("stdin", "docs") for part in p.parts)]
    elsewhere = [p for p in portions if p not in here]
    for some, number in ((here, 1), (elsewhere, min(workers or machine.cores(), len(elsewhere)))):
        with closing(pool.spread(call, ((portion, *arguments()) for portion in some), number, _REMEDY)) as found:
            for (portion, *_), result in found:
                yield portion, result


# ---------------------------------------------------------------- jobs of an array


class _AskedOfJobs(Asked):
    jobs: int


@dataclass(frozen=True)
class _Drawn:
    """What a job's `sample.json` says: what it was asked, and of the text that it has read."""

    asked: str
    portions: list[int]
    hashes: list[str | None]
    documents: int
    read: int
    characters: int


def do_share(
    out: Path,
    portions: Sequence[Portion],
    settings: VocabularySettings,
    request: Mapping[str, Any],
    workers: int,
    share: tuple[int, int],
) -> dict[str, Any]:
    """Draw the sentences of one job's portions into `out/samples`; what the job has drawn already is kept."""
    index, count = share
    if any(portion.is_stream for portion in portions):
        raise ConfigError("stdin cannot be shared by several jobs", "write it to a file first, or omit --task")
    place = out / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    wanted = {**request, "jobs": count}
    if not (place / REQUEST).is_file():
        store.write_json(place / REQUEST, wanted)
    elif store.read_json(place / REQUEST) != wanted:
        raise BusyError(
            f"{out}: its jobs have other sources, options or another number", "remove it, or ask as they do"
        )
    mine = share_of(portions, index, count)
    directory = place / f"{index:05d}"
    asked = store.hash_of(wanted)  # jobs that began together may not have seen each other's request
    with store.lock(place / ".locks" / str(index)):
        drawn = _kept(directory, mine, workers, asked)
        if drawn is None:
            sample, hashes = draw_all(mine, settings, workers)
            sample.finish()
            drawn = _Drawn(
                asked, [portion.number for portion in mine], hashes, sample.documents, sample.read, sample.characters
            )
            with store.commit_directory(directory, "sample", replace=True) as staging:
                store.write_bytes(staging / "places", sample.places.astype("<i8").tobytes())
                store.write_bytes(staging / "sentences.txt", "".join(f"{s}\n" for s in sample.sentences).encode())
                store.write_json(staging / "sample.json", asdict(drawn))
    finished = sum((place / f"{n:05d}" / store.MANIFEST).is_file() for n in range(count))
    return {"directory": str(out), "job": f"{index}/{count}", "jobs_finished": finished, "sentences_read": drawn.read}


def _kept(directory: Path, mine: Sequence[Portion], workers: int, asked: str) -> _Drawn | None:
    """What the job has drawn before, where it is whole and the text is still the same."""
    if not directory.exists():
        return None
    try:
        store.verify(directory, "sample")
        drawn = store.read_record(directory / "sample.json", _Drawn)
    except CheckpointError as error:
        console.note(f"{error.message}; drawing it again")
        return None
    return drawn if drawn.asked == asked and hashes_of(mine, workers) == drawn.hashes else None


def merged(out: Path, settings: VocabularySettings, request: Mapping[str, Any]) -> tuple[Sample, list[str | None]]:
    """The sample that all jobs have drawn together, and the SHA-256 of each portion."""
    place = out / FOLDER
    if not (place / REQUEST).is_file():
        raise CheckpointError(f"{out}: no job has drawn sentences here", "--task 0/8 to 7/8 do, or omit --task")
    wanted = store.read_record(place / REQUEST, _AskedOfJobs)
    count = wanted["jobs"]
    if wanted != {**request, "jobs": count}:
        raise BusyError(f"{out}: its jobs have other sources or options", "name them as the jobs do")
    missing = [n for n in range(count) if not (place / f"{n:05d}" / store.MANIFEST).is_file()]
    if missing:
        raise CheckpointError(
            f"{out}: {len(missing)} of {count} jobs are not finished, the first is {missing[0]}/{count}",
            "run those that are missing again",
        )
    sample, hashes = Sample(settings.sample_size, settings.seed), dict[int, str | None]()
    for directory in (place / f"{n:05d}" for n in range(count)):
        store.verify(directory, "sample")
        drawn = store.read_record(directory / "sample.json", _Drawn)
        if drawn.asked != store.hash_of(wanted):
            raise BusyError(f"{directory}: was drawn with other sources or options", "run this job again")
        sentences = (directory / "sentences.txt").read_text(encoding="utf-8").split("\n")[:-1]
        places = np.fromfile(directory / "places", "<i8").astype(np.int64)
        counts = drawn.documents, drawn.read, drawn.characters
        sample.merge(Sample(sample.size, sample.seed, sample.limit, sentences, places, *counts))
        hashes |= dict(zip(drawn.portions, drawn.hashes, strict=True))
    return sample, [hashes[number] for number in range(len(request["sources"]))]


def clear(out: Path) -> None:
    """Remove what jobs have drawn."""
    shutil.rmtree(out / FOLDER, ignore_errors=True)
