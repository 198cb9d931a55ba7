"""The sentences of a vocabulary, drawn by processes and by the jobs of an array: the same for any number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from typing_extensions import TypedDict

from albert_cli import console, machine, pool, store
from albert_cli.errors import BusyError
from albert_cli.text.sampling import SentenceSample, sample_work_unit
from albert_cli.text.work_units import WorkUnit, select_array_job

if TYPE_CHECKING:
    from albert_cli.text.build_vocabulary import VocabularySettings

FOLDER = "samples"  # in a vocabulary's directory until it is made: what jobs have drawn
LOCKS = f"{FOLDER}/.locks"
REQUEST = "request.json"  # in what is being made: what was asked for
_REMEDY = "a smaller --sample-size or fewer --workers need less memory"
T = TypeVar("T")


class VocabularyRequest(TypedDict):
    """What was asked for, of a vocabulary's report."""

    __pydantic_config__ = {"extra": "allow"}  # type: ignore[misc]  # noqa: RUF012
    size: int
    sources: list[dict[str, Any]]


def sample_work_units(
    sample: SentenceSample, portions: Sequence[WorkUnit], settings: VocabularySettings, workers: int
) -> dict[int, str | None]:
    """Add the sentences of these portions to a sample; returns the SHA-256 of each, by its number."""
    hashes = dict[int, str | None]()
    done, total = 0, sum(portion.size for portion in portions)

    def arguments() -> tuple[Any, ...]:
        return settings.read, settings.language, sample.size, sample.seed, sample.limit

    with console.progress("reading", total or None) as progress:
        for portion, (part, digest) in _map_work_units(sample_work_unit, portions, workers, arguments):
            sample.merge(part)
            hashes[portion.number] = digest
            done += portion.size
            progress.update(done, f"{sample.read:,} sentences, {sample.characters / 1e6:.0f} M characters")
    return hashes


def hash_work_units(portions: Sequence[WorkUnit], workers: int) -> list[str | None]:
    """The SHA-256 of each portion's text as it lies on the disk."""
    hashes = {portion.number: digest for portion, digest in _map_work_units(WorkUnit.sha256, portions, workers)}
    return [hashes[portion.number] for portion in portions]


def _map_work_units(
    call: Callable[..., T], portions: Sequence[WorkUnit], workers: int, arguments: Callable[[], tuple[Any, ...]] = tuple
) -> Iterator[tuple[WorkUnit, T]]:
    """(portion, result) of each: this process takes what it alone can read or has in memory, a pool the rest."""
    here = [p for p in portions if any(part.source.kind in ("stdin", "docs") for part in p.parts)]
    elsewhere = [p for p in portions if p not in here]
    for some, number in ((here, 1), (elsewhere, min(workers or machine.available_cores(), len(elsewhere)))):
        with closing(pool.map_unordered(call, ((portion, *arguments()) for portion in some), number, _REMEDY)) as found:
            for (portion, *_), result in found:
                yield portion, result


# ---------------------------------------------------------------- jobs of an array


@dataclass(frozen=True)
class _Drawn:
    """What a job's `sample.json` says: the hash of what it was asked, and of the text that it has read."""

    asked: str
    portions: list[int]
    hashes: list[str | None]
    documents: int
    read: int
    characters: int


def do_share(
    out: Path,
    portions: Sequence[WorkUnit],
    settings: VocabularySettings,
    request: Mapping[str, Any],
    workers: int,
    share: tuple[int, int],
) -> dict[str, Any]:
    """Draw the sentences of one job's portions into `out/samples`, for a vocabulary that is made there later."""
    index, count = share
    mine, name = select_array_job(portions, index, count), f"{index}-of-{count}"
    with store.lock(out / LOCKS / name):
        list(_drawn_by_jobs(out, request))  # refuses to draw beside jobs that were asked for something else
        sample = SentenceSample(settings.sample_size, settings.seed)
        hashes = sample_work_units(sample, mine, settings, workers)
        sample.finish()
        counts = sample.documents, sample.read, sample.characters
        numbers = sorted(hashes)
        drawn = _Drawn(store.hash_json(request), numbers, [hashes[number] for number in numbers], *counts)
        with store.commit_directory(out / FOLDER / name, "sample", replace=True) as staging:
            store.write_bytes(staging / "places", sample.places.astype("<i8").tobytes())
            store.write_bytes(staging / "sentences.txt", "".join(f"{s}\n" for s in sample.sentences).encode())
            store.write_json(staging / "sample.json", asdict(drawn))
    finished = len(list(_drawn_by_jobs(out, request)))
    return {"directory": str(out), "job": f"{index}/{count}", "jobs_finished": finished, "sentences_read": drawn.read}


def draw_all(
    out: Path, portions: Sequence[WorkUnit], settings: VocabularySettings, request: Mapping[str, Any], workers: int
) -> tuple[SentenceSample, list[str | None]]:
    """The sample of these portions, and the SHA-256 of each: what jobs have drawn in `out`, and here the rest.

    Raises `BusyError` where a job still draws, or jobs were asked for something else.
    """
    sample, hashes = SentenceSample(settings.sample_size, settings.seed), dict[int, str | None]()
    with ExitStack() as stack:
        for place in out.glob(f"{LOCKS}/*"):
            stack.enter_context(store.lock(place))
        for directory, drawn in _drawn_by_jobs(out, request):
            store.verify(directory, "sample")
            if hashes.keys() & drawn.portions:
                continue  # of a job that was one of another number
            sentences = (directory / "sentences.txt").read_text(encoding="utf-8").split("\n")[:-1]
            places = np.fromfile(directory / "places", "<i8").astype(np.int64)
            counts = drawn.documents, drawn.read, drawn.characters
            sample.merge(SentenceSample(sample.size, sample.seed, sample.limit, sentences, places, *counts))
            hashes |= dict(zip(drawn.portions, drawn.hashes, strict=True))
        hashes |= sample_work_units(sample, [p for p in portions if p.number not in hashes], settings, workers)
    return sample, [hashes[portion.number] for portion in portions]


def _drawn_by_jobs(out: Path, request: Mapping[str, Any]) -> Iterator[tuple[Path, _Drawn]]:
    """The directories of finished jobs; raises `BusyError` where one was asked for something else."""
    for manifest in sorted(out.glob(f"{FOLDER}/[!.]*/{store.MANIFEST}")):
        drawn = store.read_record(manifest.with_name("sample.json"), _Drawn)
        if drawn.asked != store.hash_json(request):
            raise BusyError(
                f"{manifest.parent}: jobs have drawn with other sources or options", "ask as they do, or remove it"
            )
        yield manifest.parent, drawn
