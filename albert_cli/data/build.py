"""`albert data`: turn text into a data directory of token shards, in parallel and resumably.

The sources are divided into work units (`text.work_units`). The text of each unit is tokenized into a directory below
`shards/`, which is committed as a whole. The shards depend on the text, the vocabulary and the settings, never on the
number of workers or machines. An interrupted build retains its finished units.

After the last unit, `data.rewrites` drops duplicate documents if the settings request it, and holds out a document if
`holdout` selects none. Then `data.merge` writes the other files of the data directory.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Final

from albert_cli import console, executor, store
from albert_cli.array_jobs import ArrayJob
from albert_cli.data.build_report import ArrayJobReport, BuildReport
from albert_cli.data.merge import publish_data, require_training_text
from albert_cli.data.records import (
    DATA_FORMAT,
    BuildPlan,
    BuildSettings,
    DataFacts,
    ShardFacts,
    describe_first_change,
    read_data_facts,
)
from albert_cli.data.rewrites import rewrite_all
from albert_cli.data.sentence_order import warn_missing_pairs
from albert_cli.data.tokenization import ProgressCallback, ShardUnit, load_finished_unit, tokenize_unit
from albert_cli.data.verification import (
    are_sources_unchanged,
    collect_file_signatures,
    read_verified_unit,
    record_verified_data,
    verify_data,
)
from albert_cli.errors import BusyError, ConfigError, LockedError
from albert_cli.machine import available_cores
from albert_cli.text.parallel_reading import hash_work_units
from albert_cli.text.remote_files import strip_query
from albert_cli.text.source_parts import SourcePart
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.work_units import split_sources
from albert_cli.work_plan import PLAN_FILE, UNIT_LOCKS, locked_unit, read_command, record_plan, remove_plan

BUILD_PLAN_FILE: Final = "plan.json"  # the `BuildPlan` of an unfinished build; `albert status` reads `PLAN_FILE`
_SECONDS_BETWEEN_ATTEMPTS: Final = 5.0
_USE_ANOTHER_OUT: Final = "choose another --out, or delete this directory"


def build_data(
    sources: Sequence[str],
    vocabulary_dir: Path,
    out: Path,
    settings: BuildSettings,
    workers: int = 0,
    array_job: ArrayJob | None = None,
) -> BuildReport | ArrayJobReport:
    """Build the data directory `out`; do nothing if it is finished and has the same sources and settings.

    workers: number of processes, 0 for one per core. array_job: tokenize only this job's part of the units, and do not
    merge; a later call without `array_job` tokenizes the other units and merges. Waits for units that other processes
    run. Raises `InputError` for unreadable or empty text, and `BusyError` if `out` contains other files.
    """
    begin = time.monotonic()
    vocabulary = Vocabulary.load(vocabulary_dir)
    if not vocabulary.marks_words:
        console.warn(
            f"{vocabulary_dir}: its tokens do not show where words begin, so every token counts as a word in masking; "
            "use a tokenizer with Metaspace or ByteLevel to mask whole words"
        )
    units = plan_units(sources, vocabulary_dir, out, settings)
    finished_facts = load_finished_data(out, units, workers)
    if finished_facts is not None:
        warn_missing_pairs(finished_facts.totals["train"])
        return BuildReport(out, finished_facts, up_to_date=True, seconds=0.0)
    if workers == 0:
        workers = available_cores()
    if array_job is not None:
        return _run_array_job(out, units, workers, array_job)
    with store.lock(out), _cleanup_on_failure(out):
        check_and_write_plan(out, units)
        unit_facts = _run_units(units, workers)
        unit_facts = rewrite_all(units, unit_facts, workers)  # drops duplicates, holds out a document
        require_training_text(units, unit_facts)
        facts = publish_data(out, units, unit_facts, vocabulary)
        _remove_plans(out)
        record_verified_data(out, collect_file_signatures(out))  # `publish_data` has just hashed every file
    warn_missing_pairs(facts.totals["train"])
    return BuildReport(out, facts, up_to_date=False, seconds=round(time.monotonic() - begin, 3))


def _remove_plans(out: Path) -> None:
    """Remove the files that only an unfinished build needs: its plans and locks."""
    shutil.rmtree(out / UNIT_LOCKS, ignore_errors=True)
    (out / BUILD_PLAN_FILE).unlink(missing_ok=True)
    remove_plan(out / PLAN_FILE)


def _run_array_job(out: Path, units: Sequence[ShardUnit], workers: int, array_job: ArrayJob) -> ArrayJobReport:
    """Run the units of one array job; several jobs may run at the same time."""
    begin = time.monotonic()
    if any(unit.is_stream for unit in units):
        raise ConfigError("several jobs cannot read stdin", "write it to a file first, or omit --task")
    selected = array_job.select(units, size=lambda unit: unit.size)
    check_and_write_plan(out, units)
    unit_facts = _run_units(selected, workers)
    return ArrayJobReport(
        out=out,
        job=str(array_job),
        units=len(unit_facts),
        bytes_read=sum(facts.bytes for facts in unit_facts),
        units_finished=sum(unit.is_finished for unit in units),
        units_total=len(units),
        seconds=round(time.monotonic() - begin, 3),
    )


@contextmanager
def _cleanup_on_failure(out: Path) -> Iterator[None]:
    """Remove what the build has written if the block fails before any unit is finished, unless it resumes a build.

    Other hidden files in `out`, such as `.git`, remain. `store.lock` removes `out` itself if it is new.
    """
    is_resumed = (out / BUILD_PLAN_FILE).is_file()
    try:
        yield
    except BusyError:  # `out` contains the work of another command
        raise
    except BaseException:
        has_finished_units = any(out.glob(f"shards/*/{store.MANIFEST}"))
        if not is_resumed and not has_finished_units:
            shutil.rmtree(out / "shards", ignore_errors=True)
            with suppress(OSError):  # the error of the block is the one to report
                _remove_plans(out)
        raise


# ---------------------------------------------------------------- data from an earlier build: finished or unfinished


def load_finished_data(out: Path, units: Sequence[ShardUnit], workers: int) -> DataFacts | None:
    """Load the facts of a finished data directory; return None if it is missing or unfinished.

    Raises `BusyError` if `out` contains something that these units would not build, and `CheckpointError` if a file of
    finished data is damaged.
    """
    if store.read_finished_manifest(out, "data", BUILD_PLAN_FILE, UNIT_LOCKS) is None:
        return None
    if store.read_json(out / "data.json").get("format") != DATA_FORMAT:
        raise BusyError(f"{out}: data of another version of albert", _USE_ANOTHER_OUT)
    facts = read_data_facts(out)
    if not _is_built_by(facts, units, workers):
        change = describe_first_change(facts, make_plan(units))
        message = f"{out}: holds data from other text, another vocabulary or other settings{change}"
        raise BusyError(message, _USE_ANOTHER_OUT)
    verify_data(out)
    store.remove_leftovers(out)
    _remove_plans(out)  # a build that was killed just after it wrote the manifest has left them
    return facts


def _is_built_by(facts: DataFacts, units: Sequence[ShardUnit], workers: int) -> bool:
    """Return True if the units would build the data that `facts` describes.

    Sources are hashed only if everything else is equal. A unit is not hashed if its files still have the signatures
    that were recorded when it was tokenized.
    """
    plan = make_plan(units)
    if facts.vocabulary != plan.vocabulary or facts.settings != plan.settings:
        return False
    built_records = [{**record, "sha256": None} for record in facts.sources]
    planned_records = [{**record, "sha256": None} for record in plan.sources]
    if built_records != planned_records:
        return False
    units_to_hash = []
    built_hashes = []
    for unit, record in zip(units, facts.sources, strict=True):
        if not are_sources_unchanged(unit.source_signatures, read_verified_unit(unit.directory)):
            units_to_hash.append(unit)
            built_hashes.append(record["sha256"])
    # A data set on the Hub has no hash. Its name identifies it, and the comparison above includes the name.
    hashes = hash_work_units(units_to_hash, workers)
    return all(new is None or new == built for new, built in zip(hashes, built_hashes, strict=True))


def make_plan(units: Sequence[ShardUnit]) -> BuildPlan:
    """Return the plan of a build of these units."""
    return BuildPlan(
        vocabulary=units[0].vocabulary_fingerprint,
        settings=units[0].settings,
        sources=[unit.record for unit in units],
        names=[unit.name for unit in units],
    )


def check_and_write_plan(out: Path, units: Sequence[ShardUnit]) -> None:
    """Check the plan of an unfinished build, then write this build's plan and the plan that `albert status` reads.

    Raises `BusyError` if `out` contains an unfinished build with other settings, another vocabulary, or a work unit
    that is not in `units`. Files that have changed since that build began are no obstacle: their units run again.
    """
    plan = make_plan(units)
    path = out / BUILD_PLAN_FILE
    saved = store.read_record(path, BuildPlan) if path.is_file() else None
    if saved is not None and not plan.contains(saved):
        message = f"{out}: holds an unfinished build of other text, another vocabulary or other settings"
        command = read_command(out / PLAN_FILE) or "use the same sources and settings"
        hint = f"to continue it: {command}; or choose another --out"
        raise BusyError(message + describe_first_change(saved, plan), hint)
    store.write_json(path, asdict(plan))
    # The titles are empty, because the directories' names are enough for `albert status`.
    record_plan(out / PLAN_FILE, {f"shards/{unit.name}": "" for unit in units})


# ---------------------------------------------------------------- from sources to work units


def plan_units(sources: Sequence[str], vocabulary_dir: Path, out: Path, settings: BuildSettings) -> list[ShardUnit]:
    """Divide the sources into work units, in order; the units are the same on all machines."""
    vocabulary_fingerprint = store.fingerprint(vocabulary_dir)
    units = []
    for unit in split_sources(sources, settings.read, settings.split_bytes):
        units.append(
            ShardUnit(
                parts=unit.parts,
                number=unit.number,
                directory=out / "shards" / _unit_name(unit.number, unit.parts),
                vocabulary_dir=vocabulary_dir,
                vocabulary_fingerprint=vocabulary_fingerprint,
                settings=settings,
            )
        )
    return units


def _unit_name(number: int, parts: Sequence[SourcePart]) -> str:
    """Return a name such as `00007-wiki.jsonl-00000256M`: the number, the first file, and the offset of its part.

    The offset is in MiB of the file, or in files of a data set on the Hub. With several parts, the name ends with
    `-and-N-more` instead.
    """
    first = parts[0]
    file_name = strip_query(first.source.name).rstrip("/").rpartition("/")[2]
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", file_name).strip("-.")
    name = f"{number:05d}-{stem[:40]}"
    if len(parts) > 1:
        return f"{name}-and-{len(parts) - 1}-more"
    if first.source.kind == "hub" and first.end is not None:
        return f"{name}-{first.start:05d}"
    if first.start or first.end is not None:
        return f"{name}-{first.start >> 20:08d}M"
    return name


# ---------------------------------------------------------------- tokenizing work units


def _run_unless_locked(unit: ShardUnit, on_progress: ProgressCallback | None = None) -> ShardFacts | None:
    """Tokenize a work unit unless it is finished and its shards are intact; return its facts.

    Returns None while another process tokenizes the unit.
    """
    out = unit.directory.parent.parent  # the data directory: the unit's directory is `out / "shards" / unit.name`
    with suppress(LockedError), locked_unit(out / UNIT_LOCKS / unit.name):
        finished_facts = load_finished_unit(unit)
        if finished_facts is not None:
            return finished_facts
        try:
            return tokenize_unit(unit, on_progress)
        except BusyError:
            # Some file systems do not share locks between machines. Another machine has then tokenized the same unit
            # at the same time, and committed it first.
            finished_facts = load_finished_unit(unit)
            if finished_facts is None:
                raise
            return finished_facts
    return None


def _run_units(units: Sequence[ShardUnit], workers: int) -> list[ShardFacts]:
    """Run the unfinished units, in this process or in several, and return the facts of all units in their order.

    Waits until the units that other processes run are finished, and runs such a unit itself if its process stops.
    """
    begin = time.monotonic()
    source_bytes = sum(unit.size for unit in units if unit.is_finished)  # position of the progress bar
    text_bytes = 0  # of text that this call has read
    has_known_size = all(unit.size > 0 for unit in units)
    total_bytes = sum(unit.size for unit in units) if has_known_size else None
    results: dict[str, ShardFacts] = {}
    with console.show_progress("data", total_bytes, source_bytes) as progress:

        def on_progress(new_source_bytes: int, new_text_bytes: int) -> None:
            nonlocal source_bytes, text_bytes
            source_bytes += new_source_bytes
            text_bytes += new_text_bytes
            rate = text_bytes / 1e6 / max(time.monotonic() - begin, 1e-9)
            progress.update(source_bytes, f"{text_bytes / 1e6:.1f} MB of text, {rate:.1f} MB/s")

        while True:
            remaining = [unit for unit in units if unit.name not in results]
            for unit, facts in _iter_results(remaining, workers, on_progress):
                if facts is not None:
                    results[unit.name] = facts
            n_locked = len(units) - len(results)
            if n_locked == 0:
                return [results[unit.name] for unit in units]
            console.info(f"waiting for {n_locked} of {len(units)} work units, which other processes tokenize")
            time.sleep(_SECONDS_BETWEEN_ATTEMPTS)


def _iter_results(
    units: Sequence[ShardUnit], workers: int, on_progress: ProgressCallback
) -> Iterator[tuple[ShardUnit, ShardFacts | None]]:
    """Run the units, and yield each unit with its facts, or with None if another process runs it."""
    local_units, pool_units = _divide_units(units, workers)
    for unit in local_units:
        yield unit, _run_unless_locked(unit, on_progress)
    was_finished = {unit.name for unit in pool_units if unit.is_finished}
    calls = ((unit,) for unit in pool_units)
    workers = min(workers, len(pool_units))
    remedy = "run the same command again with fewer --workers, which need less memory; finished units are kept"
    with closing(executor.map_unordered(_run_unless_locked, calls, workers, remedy)) as finished:
        for (unit,), facts in finished:
            yield unit, facts
            if facts is not None and unit.name not in was_finished:
                on_progress(unit.size, facts.bytes)


def _divide_units(units: Sequence[ShardUnit], workers: int) -> tuple[list[ShardUnit], list[ShardUnit]]:
    """Return the units for this process and the units for the pool of workers.

    Only this process can read stdin. Without a cluster and with fewer than two workers, it runs all units. Large units
    come first, so that all workers finish at about the same time.
    """
    by_size = sorted(units, key=lambda unit: (-unit.size, unit.name))
    streams = [unit for unit in by_size if unit.is_stream]
    pool_units = [unit for unit in by_size if not unit.is_stream]
    if min(workers, len(units)) <= 1 and not executor.has_cluster():
        return [*streams, *pool_units], []
    return streams, pool_units
