"""Read work units in parallel, to sample sentences or to hash files.

Results do not depend on the number of workers, nor on the order in which units finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from albert_cli import console, executor, machine
from albert_cli.text.read_settings import ReadSettings
from albert_cli.text.sampling import SentenceSample, sample_work_unit
from albert_cli.text.work_units import WorkUnit

T = TypeVar("T")


def sample_work_units(
    units: Sequence[WorkUnit], read_settings: ReadSettings, language: str, size: int, seed: int, workers: int
) -> tuple[SentenceSample, list[str | None]]:
    """Return a uniform sample of the units' sentences, in the order of the text, and each unit's SHA-256.

    The SHA-256 of a data set on the Hub is None. size: maximum number of sampled sentences; language: ISO 639 code for
    splitting into sentences; workers: processes, 0 means one per core.
    """
    sample = SentenceSample(size, seed)
    hashes: dict[int, str | None] = {}
    bytes_read = 0
    total_bytes = sum(unit.size for unit in units)

    def make_arguments(unit: WorkUnit) -> tuple[object, ...]:
        # This is called when the unit is submitted. If the merged results have lowered `key_limit` by then, the worker
        # drops more sentences that cannot be in the sample.
        return unit, read_settings, language, size, seed, sample.key_limit

    remedy = "for vocab, use a smaller --sample-size or fewer --workers"
    with console.show_progress("reading", total_bytes or None) as progress:
        for unit, (unit_sample, digest) in _map_work_units(sample_work_unit, units, workers, remedy, make_arguments):
            sample.merge(unit_sample)
            hashes[unit.number] = digest
            bytes_read += unit.size
            megabytes = sample.characters / 1e6
            progress.update(bytes_read, f"{sample.sentences_read:,} sentences, {megabytes:.0f} M characters")
    sample.finish()
    return sample, [hashes[unit.number] for unit in units]


def hash_work_units(units: Sequence[WorkUnit], workers: int) -> list[str | None]:
    """Return the SHA-256 of each unit's bytes on disk, None for a data set on the Hub.

    workers: processes; 0 means one per core.
    """
    remedy = "for vocab and data, use fewer --workers"
    results = _map_work_units(WorkUnit.sha256, units, workers, remedy, lambda unit: (unit,))
    hashes = {unit.number: digest for unit, digest in results}
    return [hashes[unit.number] for unit in units]


def _map_work_units(
    call: Callable[..., T],
    units: Sequence[WorkUnit],
    workers: int,
    remedy: str,
    make_arguments: Callable[[WorkUnit], tuple[object, ...]],
) -> Iterator[tuple[WorkUnit, T]]:
    """Yield (unit, result of `call`) in the order in which the calls finish.

    remedy: hint of the error if memory runs out. make_arguments: returns the arguments of `call` for a unit, the unit
    first. This process first reads stdin, which no other process can read, and the installed documentation, which it
    may have in memory. Worker processes, or a cluster, read the other units.
    """
    local_units = [unit for unit in units if unit.is_stream or unit.is_installed_docs]
    for unit in local_units:
        yield unit, call(*make_arguments(unit))
    pooled_units = [unit for unit in units if unit not in local_units]
    processes = min(workers or machine.available_cores(), len(pooled_units))
    arguments = (make_arguments(unit) for unit in pooled_units)
    with closing(executor.map_unordered(call, arguments, processes, remedy)) as results:
        for call_arguments, result in results:
            yield call_arguments[0], result
