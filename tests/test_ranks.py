"""The process group: nothing for one process; several through the program's own launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from albert_cli import ranks
from albert_cli.ranks import Group, process_group

RECIPE = """
extends = "mini/docs"
[model]
embedding_size = 16
hidden_size = 16
num_attention_heads = 2
intermediate_size = 16
[start]
neighbours = [-1]
[train]
log_every = 1
save_every = 0
"""


def test_one_process_needs_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert ranks.is_main() and ranks.world_size() == 1
    with process_group("cpu") as group:
        assert group == Group(0, 1)
        tensor = torch.tensor([1.0, 2.0])
        assert group.sum(tensor) is tensor and tensor.tolist() == [1.0, 2.0]
        assert group.broadcast(3.5) == 3.5 and group.sum_numbers([1.0, 2.5]) == [1.0, 2.5]
        group.share([tensor])
        group.barrier()
    assert not torch.distributed.is_initialized()


def test_every_rank_gets_the_tensors_of_rank_0(tmp_path: Path) -> None:
    (tmp_path / "share.py").write_text(
        "import torch\n"
        "from albert_cli.ranks import process_group\n"
        "with process_group('cpu') as group:\n"
        "    weight = torch.nn.Parameter(torch.full((2, 3), 5.0 + group.rank))\n"
        "    group.share([weight])\n"
        "    assert weight.tolist() == [[5.0] * 3] * 2 and weight.requires_grad\n"
        "    print('shared', group.rank)\n"
    )
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "share.py"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["0", "1", "shared", "shared"]


def test_ranks_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (ranks.rank(), ranks.world_size(), ranks.is_main()) == (3, 8, False)


def test_what_all_ranks_refuse_alike_is_said_once(tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text(RECIPE)
    command = [sys.executable, "-m", "albert_cli", "pretrain", str(tmp_path / "it.toml"), "--data", str(tiny_data)]
    command += ["--out", str(tmp_path / "run"), "--nproc", "2", "-s", "optimizer.rate=1", "--device", "cpu"]
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=temporary)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith(("error:", "hint:"))]
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"] and "optimizer.rate" in lines[0]
    assert not (tmp_path / "run").exists() and not list(tmp_path.glob("albert-*"))


def test_what_one_rank_alone_has_is_always_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []
    monkeypatch.setattr(ranks, "_let_the_cause_end_first", lambda: waited.append("once"))
    assert not any(ranks.another_prints("a", and_ends_us=False) for _ in range(2))  # no launch of ours
    monkeypatch.setenv("ALBERT_PRINTED_ERRORS", str(tmp_path))
    assert not ranks.another_prints("a", and_ends_us=True) and not ranks.another_prints("b", and_ends_us=True)
    assert waited == [] and ranks.another_prints("a", and_ends_us=False)
    assert not ranks.another_prints("a", and_ends_us=True) and waited == ["once"]  # it was not ended: say it
    assert not ranks.another_prints("no such file: \udcff", and_ends_us=True)  # a name that is not UTF-8
    monkeypatch.setenv("ALBERT_PRINTED_ERRORS", str(tmp_path / "gone"))
    assert not any(ranks.another_prints("a", and_ends_us=True) for _ in range(2))


def wait_for_steps(run: Path, process: subprocess.Popen[str], since: int = 0) -> None:
    """Until the run has a journal, and not that of `since`: a run that goes on writes a new one."""
    deadline, journal = time.monotonic() + 200, run / "metrics.jsonl"
    while process.poll() is None and time.monotonic() < deadline:
        if journal.exists() and journal.stat().st_ino != since:
            return
        time.sleep(0.05)


def process_of(launcher: int, rank: int) -> int:
    """The process of a rank that a launcher has started."""
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        if b"RANK=%d" % rank in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError("no such rank")


def wait_until_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.1)


def is_running(process: int) -> bool:
    """Whether it is there and more than an entry that nobody has asked for yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc to find a process in")
def test_nproc_starts_ranks_stops_them_and_tells_their_exit_code(tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text(RECIPE)
    run = tmp_path / "run"
    command = [sys.executable, "-m", "albert_cli", "pretrain", str(tmp_path / "it.toml"), "--data", str(tiny_data)]
    command += ["--out", str(run), "--nproc", "2", "-s", "schedule.total_steps=100000", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_steps(run, process)
        process.terminate()
        _, said = process.communicate(timeout=200)
    assert process.returncode == 75 and said.count("stopped after step") == 1, said
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"]) == ("interrupted", 75)
    assert (run / f"step-{status['step']:08d}" / "manifest.json").is_file()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_steps(run, process, since=(run / "metrics.jsonl").stat().st_ino)
        os.kill(process_of(process.pid, 1), signal.SIGKILL)
        _, said = process.communicate(timeout=200)
    assert process.returncode == 137, said
    assert "rank 1 was killed by SIGKILL" in said and "bug" not in said
    # A launcher that is killed leaves no rank behind: the same command can go on at once.
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for_steps(run, process, since=(run / "metrics.jsonl").stat().st_ino)
        ranks = [process_of(process.pid, rank) for rank in range(2)]
        process.kill()
        wait_until_gone(ranks)
    # Stopped before it could begin, the run keeps its old status, but the code is this start's own: that of rank 0,
    # though the connection that it closes ends rank 1 too, and though it is slow to end here.
    slow = "import atexit, os, time\natexit.register(time.sleep, 2 * (os.environ.get('RANK') == '0'))\n"
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(slow)
    path = os.pathsep.join([str(tmp_path / "site"), *sys.path])
    refused = [*command, "-s", "train.seed=5"]
    slowly = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(refused, capture_output=True, text=True, timeout=200, check=False, env=slowly)
    assert done.returncode == 2
    assert "train.seed: 0 -> 5" in done.stderr
    assert "bug" not in done.stderr
