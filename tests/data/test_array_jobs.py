from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.data.array_jobs import ArrayJob, parse_array_job, select_array_job
from albert_cli.data.build import build_data, plan_tasks
from albert_cli.data.build_report import ArrayJobReport, BuildReport
from albert_cli.data.records import BuildSettings
from albert_cli.errors import BusyError, ConfigError
from albert_cli.store import manifests
from albert_cli.text.work_units import WorkUnit
from tests.helpers.data_directories import TENTH, WriteFiles, contents


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "data"


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_build_array_jobs_give_the_same_bytes(small_vocabulary: Path, write_files: WriteFiles, tmp_path: Path) -> None:
    sources = write_files(3)
    whole = tmp_path / "whole"
    out = tmp_path / "out"
    build_data(sources, small_vocabulary, whole, TENTH, workers=2)
    for index in (2, 0):
        build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(index, 3))
    with pytest.raises(BusyError, match="unfinished build of other"):
        build_data(sources, small_vocabulary, out, BuildSettings(holdout=0.3), share=(1, 3))
    last = build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(1, 3))
    assert isinstance(last, ArrayJobReport)
    assert last.tasks_finished == last.tasks_total >= 6
    assert "job 1/3" in last.format()
    assert store.read_manifest(out) is None
    early = Path(shutil.copytree(out, tmp_path / "early"))
    store.remove_directory(next((early / "shards").iterdir()))
    for directory in (out, early):
        build_data(sources, small_vocabulary, directory, TENTH)
        assert contents(directory) == contents(whole)
    again = build_data(sources, small_vocabulary, out, TENTH, share=(0, 3))
    assert isinstance(again, BuildReport) and again.up_to_date


def test_build_failure_keeps_the_work_of_other_jobs(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = write_files(1)
    build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(0, 1))
    before = contents(out)
    with pytest.raises(BusyError, match="unfinished build of other"):
        build_data(sources, small_vocabulary, out, BuildSettings(holdout=0.3))
    assert contents(out) == before
    shutil.rmtree(out / "shards")
    (out / "shards" / ".first-being-written").mkdir(parents=True)
    monkeypatch.setattr("albert_cli.data.build.tokenize_task", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build_data(sources, small_vocabulary, out, TENTH, workers=1)
    assert (out / "shards" / ".first-being-written").is_dir()


def test_build_task_locked_by_another_job_is_busy(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    sources = write_files(1)
    (first, *_) = plan_tasks(sources, small_vocabulary, out, TENTH)
    shares: tuple[ArrayJob, ...] = ((0, 1), None)
    for share in shares:
        with store.lock(out / ".tasks" / first.name), pytest.raises(BusyError, match="another run"):
            build_data(sources, small_vocabulary, out, TENTH, workers=1, share=share)


def test_array_jobs_cover_every_task_once(small_vocabulary: Path, write_files: WriteFiles, out: Path) -> None:
    tasks = plan_tasks(write_files(4), small_vocabulary, out, TENTH)
    dealt = [task.name for index in range(3) for task in select_array_job(tasks, index, 3)]
    assert sorted(dealt) == sorted(task.name for task in tasks)


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        (None, {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2"}, None),
        ("3/8", {}, (3, 8)),
        ("auto", {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "16"}, (6, 16)),
        ("auto", {"JOB_COMPLETION_INDEX": "0", "JOB_COMPLETIONS": "4"}, (0, 4)),
    ],
)
def test_parse_array_job_reads_option_and_environment(
    text: str | None, environment: dict[str, str], expected: object
) -> None:
    assert parse_array_job(text, environment) == expected


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("8/8", {}, "job 8 of 8 does not exist"),
        ("half", {}, "not of the form I/N"),
        ("auto", {}, "not a job of an array"),
        ("auto", {"JOB_COMPLETION_INDEX": "0"}, "JOB_COMPLETIONS is not set"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "x", "SLURM_ARRAY_TASK_COUNT": "2"}, "--task auto"),
    ],
)
def test_parse_array_job_rejects_impossible_jobs(text: str, environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_array_job(text, environment)


def test_merge_of_verified_shards_reads_no_text_again(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = write_files(3)
    build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(0, 1))
    hashed: list[Path] = []
    sha256_file = manifests.sha256_file

    def count(path: Path) -> str:
        hashed.append(path)
        return sha256_file(path)

    def fail(unit: WorkUnit) -> str:
        raise AssertionError(f"{unit.parts[0].source.name} is read again")

    monkeypatch.setattr(manifests, "sha256_file", count)
    monkeypatch.setattr(WorkUnit, "sha256", fail)
    build_data(sources, small_vocabulary, out, TENTH, workers=1)
    assert not any(path.suffix in (".ids", ".sentences", ".documents") for path in hashed)
    report = build_data(sources, small_vocabulary, out, TENTH, workers=1)
    assert isinstance(report, BuildReport) and report.up_to_date


def test_merge_reads_changed_shards_and_sources_again(
    small_vocabulary: Path, write_files: WriteFiles, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = write_files(3)
    build_data(sources, small_vocabulary, tmp_path / "whole", TENTH, workers=1)
    build_data(sources, small_vocabulary, out, TENTH, workers=1, share=(0, 1))
    ids = next(out.glob("shards/*/train-00.ids"))
    content = bytearray(ids.read_bytes())
    content[0] ^= 1
    ids.write_bytes(content)
    os.utime(sources[0], ns=(1, 1))
    build_data(sources, small_vocabulary, out, TENTH, workers=1)
    assert "train-00.ids: damaged" in capsys.readouterr().err
    assert contents(out) == contents(tmp_path / "whole")
