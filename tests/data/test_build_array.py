from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.array_jobs import ArrayJob
from albert_cli.data import build
from albert_cli.data.build import build_data, plan_units
from albert_cli.data.build_report import ArrayJobReport, BuildReport
from albert_cli.data.records import BuildSettings
from albert_cli.errors import BusyError
from albert_cli.store import manifests
from albert_cli.text.work_units import WorkUnit
from tests.helpers.data_directories import TENTH_HELD_OUT, WriteFiles, contents


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_build_array_jobs_give_the_same_bytes(small_vocabulary: Path, write_files: WriteFiles, tmp_path: Path) -> None:
    sources = write_files(3)
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    build_data(sources, small_vocabulary, whole, TENTH_HELD_OUT, workers=1)
    for index in (2, 0):
        build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1, array_job=ArrayJob(index, 3))
    with pytest.raises(BusyError, match="unfinished build of other"):
        build_data(sources, small_vocabulary, out, BuildSettings(holdout=0.3), array_job=ArrayJob(1, 3))
    last = build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1, array_job=ArrayJob(1, 3))
    assert isinstance(last, ArrayJobReport)
    assert last.units_finished == last.units_total >= 6
    assert "job 1/3" in last.format()
    assert store.read_manifest(out) is None
    early = Path(shutil.copytree(out, tmp_path / "early"))
    store.remove_directory(next((early / "shards").iterdir()))
    for directory in (out, early):
        build_data(sources, small_vocabulary, directory, TENTH_HELD_OUT, workers=1)
        assert contents(directory) == contents(whole)
    again = build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, array_job=ArrayJob(0, 3))
    assert isinstance(again, BuildReport) and again.up_to_date


def test_build_failure_keeps_the_work_of_other_jobs(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = write_files(1)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1, array_job=ArrayJob(0, 1))
    before = contents(out)
    with pytest.raises(BusyError, match="unfinished build of other"):
        build_data(sources, small_vocabulary, out, BuildSettings(holdout=0.3))
    assert contents(out) == before
    shutil.rmtree(out / "shards")
    (out / "shards" / ".first-being-written").mkdir(parents=True)
    monkeypatch.setattr("albert_cli.data.build.tokenize_unit", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert (out / "shards" / ".first-being-written").is_dir()


@pytest.mark.parametrize("array_job", [ArrayJob(0, 1), None])
def test_build_waits_for_a_task_of_another_process(
    array_job: ArrayJob | None,
    small_vocabulary: Path,
    write_files: WriteFiles,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(build, "_SECONDS_BETWEEN_ATTEMPTS", 0.1)
    sources = write_files(2)
    (first, *_) = plan_units(sources, small_vocabulary, out, TENTH_HELD_OUT)
    with ThreadPoolExecutor(1) as thread:
        with store.lock(out / ".tasks" / first.name):
            future = thread.submit(build_data, sources, small_vocabulary, out, TENTH_HELD_OUT, 1, array_job)
            while "waiting for 1 of" not in capsys.readouterr().err:
                time.sleep(0.05)
            assert not future.done() and not first.is_finished
        report = future.result()
    assert isinstance(report, ArrayJobReport if array_job else BuildReport)
    assert array_job is None or first.is_finished


def test_array_jobs_cover_every_unit_once(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    units = plan_units(write_files(4), small_vocabulary, out, TENTH_HELD_OUT)
    dealt = [unit.name for index in range(3) for unit in ArrayJob(index, 3).select(units, size=lambda unit: unit.size)]
    assert sorted(dealt) == sorted(unit.name for unit in units)


def test_merge_of_verified_shards_reads_no_text_again(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = write_files(3)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1, array_job=ArrayJob(0, 1))
    hashed: list[Path] = []
    sha256_file = manifests.sha256_file

    def count(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    def fail(unit: WorkUnit) -> str:
        raise AssertionError(f"{unit.parts[0].source.name} is read again")

    monkeypatch.setattr(manifests, "sha256_file", count)
    monkeypatch.setattr(WorkUnit, "sha256", fail)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert not any(path.suffix in (".ids", ".sentences", ".documents") for path in hashed)
    report = build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert isinstance(report, BuildReport) and report.up_to_date


def test_merge_reads_changed_shards_and_sources_again(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = write_files(3)
    build_data(sources, small_vocabulary, tmp_path / "whole", TENTH_HELD_OUT, workers=1)
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1, array_job=ArrayJob(0, 1))
    ids = next(out.glob("shards/*/train-00.ids"))
    content = bytearray(ids.read_bytes())
    content[0] ^= 1
    ids.write_bytes(content)
    os.utime(sources[0], ns=(1, 1))
    build_data(sources, small_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert "train-00.ids: damaged" in capsys.readouterr().err
    assert contents(out) == contents(tmp_path / "whole")
