"""The ranks that `--nproc` launches: their threads, their signals and their exit codes."""

from __future__ import annotations

import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from albert_cli import machine
from albert_cli.launch import _combine_exit_codes, launch
from albert_cli.ranks import LAUNCH_FOLDER_VARIABLE
from tests.helpers.processes import PATIENCE, Run, albert, start
from tests.helpers.runs import assert_interrupted
from tests.helpers.tiny_recipe import RECIPE


def test_launch_divides_the_cores_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.setattr(machine, "_control_groups", lambda controller: [])
    for name in ("OMP_NUM_THREADS", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", LAUNCH_FOLDER_VARIABLE):
        monkeypatch.setenv(name, "")  # so that monkeypatch undoes the change that `launch` makes
        monkeypatch.delenv(name)
    threads: list[str] = []
    launcher = "torch.distributed.launcher.api.elastic_launch"
    monkeypatch.setattr(launcher, lambda *_: lambda *_: threads.append(os.environ["OMP_NUM_THREADS"]))
    assert launch(3, ["doctor"]) == 0
    assert threads == ["2"]
    assert not list(tmp_path.iterdir())


def failure(code: int, second: int) -> ProcessFailure:
    """Return the failure of a rank that ended with this exit code at this second."""
    failed = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file="")
    failed.timestamp = second
    return failed


@pytest.mark.parametrize(
    ("failures", "code"),
    [
        ({3: failure(1, 10), 0: failure(-9, 250), 1: failure(-9, 250)}, 1),  # the launcher killed ranks 0 and 1
        ({3: failure(1, 10), 0: failure(-6, 40)}, 1),  # NCCL aborted rank 0, whose peer had failed
        ({1: failure(-9, 10), 0: failure(1, 17)}, 137),
        ({0: failure(1, 11), 1: failure(-9, 10)}, 137),
        ({1: failure(-9, 10), 0: failure(3, 17)}, 3),
        ({0: failure(-15, 10), 1: failure(-9, 250)}, 143),
    ],
)
def test_combine_exit_codes_shows_the_first_failure(
    failures: dict[int, ProcessFailure], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _combine_exit_codes(failures) == code
    assert ("was killed by SIGKILL" in capsys.readouterr().err) == (code == 137)


def journal_inode(run: Path) -> int:
    """Return the inode of the run's journal, which a resumed run replaces; 0 if the run has no journal yet."""
    path = run / "metrics.jsonl"
    return path.stat().st_ino if path.exists() else 0


def rank_pid(launcher: int, rank: int) -> int:
    """Return the process ID of a rank that a launcher has started."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with suppress(OSError):  # the process has ended
            if b"RANK=%d" % rank in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                return int(child)
    raise AssertionError(f"process {launcher} has no child with rank {rank}")


def wait_for_exit(pids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.1)


def is_running(pid: int) -> bool:
    """Return True if the process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start_training(
    log: Path, run: Path, data: Path, *options: object, run_first: Callable[[], None] | None = None
) -> Run:
    """Start two ranks that train in the directory `run`, and wait until they have created or replaced its journal."""
    old_inode = journal_inode(run)
    launcher = start(log, *training_command(run, data), *options, run_first=run_first)
    launcher.wait_until(lambda: journal_inode(run) not in (0, old_inode))
    return launcher


def training_command(run: Path, data: Path) -> list[object]:
    """Return the arguments that train with two ranks in the directory `run`, for longer than the test takes."""
    recipe = run.with_name("recipe.toml")
    recipe.write_text(RECIPE)
    command: list[object] = ["pretrain", recipe, "--data", data, "--out", run, "--nproc", 2, "--device", "cpu"]
    settings = ("schedule.total_steps=100000", "train.log_every=1", "train.eval_every=0", "train.save_every=0")
    return [*command, *(word for setting in settings for word in ("-s", setting))]


def ignore_sighup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def write_sitecustomize(folder: Path, code: str) -> dict[str, str]:
    """Write code that Python runs at its start; return the environment of the processes that run it."""
    (folder / "site").mkdir()
    (folder / "site/sitecustomize.py").write_text(code)
    return {"PYTHONPATH": os.pathsep.join([str(folder / "site"), *sys.path])}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="no limit of the size of files can be set for a process")
def test_nproc_after_sigterm_reports_a_failed_save(tiny_data: Path, tmp_path: Path) -> None:
    # With few lines, the journal does not reach the limit of the size of files, but the checkpoint does.
    launcher = start_training(tmp_path / "log", tmp_path / "run", tiny_data, "-s", "train.log_every=20")
    resource.prlimit(rank_pid(launcher.process.pid or 0, 0), resource.RLIMIT_FSIZE, (10_000, 10_000))
    launcher.terminate()
    assert launcher.wait() == 3, launcher.printed_text()


@pytest.mark.slow
def test_nproc_after_sigterm_at_the_start_reports_no_save(tiny_data: Path, tmp_path: Path) -> None:
    wait = "import os, pathlib, time\nif 'RANK' in os.environ:\n"
    wait += f"    pathlib.Path({str(tmp_path)!r}, os.environ['RANK'] + '.started').touch()\n    time.sleep(1000)\n"
    environment = write_sitecustomize(tmp_path, wait)
    launcher = start(tmp_path / "log", *training_command(tmp_path / "run", tiny_data), environment=environment)
    launcher.wait_until(lambda: len(list(tmp_path.glob("*.started"))) == 2)
    launcher.terminate()
    assert launcher.wait() == 128 + signal.SIGTERM, launcher.printed_text()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to find the ranks' processes in")
def test_nproc_passes_on_signals_and_exit_codes(tiny_data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = training_command(run, tiny_data)

    # Under `nohup`, the ranks ignore SIGHUP and train. SIGUSR1: they save, and one of them prints that it has stopped.
    launcher = start_training(tmp_path / "stopped", run, tiny_data, run_first=ignore_sighup)
    os.kill(launcher.process.pid or 0, signal.SIGHUP)
    size = (run / "metrics.jsonl").stat().st_size
    launcher.wait_until(lambda: (run / "metrics.jsonl").stat().st_size > 2 * size)
    os.kill(launcher.process.pid or 0, signal.SIGUSR1)
    assert launcher.wait() == 75, launcher.printed_text()
    assert len([line for line in launcher.printed_text().splitlines() if "stopped after step" in line]) == 1
    assert_interrupted(run)

    # SIGTERM: they save, as with SIGUSR1.
    launcher = start_training(tmp_path / "terminated", run, tiny_data)
    resumed_size = (run / "metrics.jsonl").stat().st_size
    launcher.wait_until(lambda: (run / "metrics.jsonl").stat().st_size > resumed_size)  # before, nothing is to be saved
    launcher.terminate()
    assert launcher.wait() == 75, launcher.printed_text()

    # A rank is killed: the exit code has the number of the signal.
    launcher = start_training(tmp_path / "rank-killed", run, tiny_data)
    os.kill(rank_pid(launcher.process.pid or 0, 1), signal.SIGKILL)
    assert launcher.wait() == 137, launcher.printed_text()
    assert "rank 1 was killed by SIGKILL" in launcher.printed_text()
    assert "bug" not in launcher.printed_text()

    # The launcher is killed: its ranks exit too, so that the same command can resume at once.
    launcher = start_training(tmp_path / "launcher-killed", run, tiny_data)
    pids = [rank_pid(launcher.process.pid or 0, rank) for rank in range(2)]
    launcher.kill()
    wait_for_exit(pids)

    # Rank 0 rejects a changed recipe. The exit code is its exit code, although rank 1 exits first: rank 0 closes the
    # connection, and then takes two seconds to exit. The exit code does not come from the old status either.
    slow_exit = "import atexit, os, time\natexit.register(time.sleep, 2 * (os.environ.get('RANK') == '0'))\n"
    environment = write_sitecustomize(tmp_path, slow_exit) | {"TMPDIR": str(tmp_path)}
    code, printed = albert(tmp_path / "rejected", *command, "-s", "train.seed=5", environment=environment)
    assert code == 2
    assert "bug" not in printed
    assert "train.seed: 0 -> 5" in printed

    # All ranks reject a wrong setting, and only one of them prints the error.
    environment = {"TMPDIR": str(tmp_path)}
    code, printed = albert(tmp_path / "wrong-setting", *command, "-s", "optimizer.rate=1", environment=environment)
    lines = [line for line in printed.splitlines() if line.startswith(("error:", "hint:"))]
    assert code == 2
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], printed
    assert "optimizer.rate" in lines[0]
    assert not list(tmp_path.glob("albert-*"))
