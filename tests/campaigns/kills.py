"""Kill commands at random moments and run them again: they must end with the same bytes as an undisturbed run.

    python -m tests.campaigns.kills --count 1000
    python -m tests.campaigns.kills --count 100 --only "pretrain, 2 ranks"

Half of the kills come after a random fraction of the command's time. The others come in a random system call on its
files, usually during a save. If a command has several ranks, one of them is killed, or all; worker processes are not
killed directly.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tests.campaigns import calls, forked, world
from tests.campaigns.faults import KILL, CallRecorder, Fault, content, run_undisturbed, unsound
from tests.campaigns.faults import run as run_with_fault
from tests.campaigns.world import CPU, Command

IN_A_ROW = 4  # the maximum number of kills before a run may finish
RANKS = {"pretrain, 2 ranks": 2}
DATA_WITH_WORKERS = ("data", "text", "--vocab", "vocabulary", "--workers", "4", "--out", "out")
COMMANDS = ("pretrain", "pretrain, 2 ranks", "data", "data, 4 workers", "finetune", "eval", "reproduce")
# With dropout, a resumed run has other weights if it samples other random numbers.
LONGER = ("-s", "schedule.total_steps=12", "-s", "model.hidden_dropout_prob=0.1", "-s", "train.save_every=1")


def commands() -> dict[str, Command]:
    """Return the commands to kill, by name."""
    by_name = world.commands_by_name()
    pretrain = replace(by_name["pretrain"], arguments=(*by_name["pretrain"].arguments, *LONGER))
    by_name |= {"pretrain": pretrain, "pretrain, 2 ranks": replace(pretrain, name="pretrain, 2 ranks")}
    by_name["data, 4 workers"] = Command("data, 4 workers", DATA_WITH_WORKERS, ("text", "vocabulary"))
    evaluation = (*by_name["eval"].arguments[:-4], "--runs", "2", "--controls", "random", "--out", "out")
    by_name["eval"] = replace(by_name["eval"], arguments=evaluation)
    assert set(CPU) <= set(pretrain.arguments)
    return {name: by_name[name] for name in COMMANDS}


@dataclass
class Tally:
    """The results of the kills of a command."""

    kills: int = 0
    during_save: int = 0
    too_late: int = 0
    runs: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.during_save} during a save, in {self.runs} runs; {self.too_late} too late; "
            f"{len(self.faults)} faults"
        )


@dataclass
class Attack:
    """Kills of one command: kill its runs, finish them, and compare their output with that of an undisturbed run."""

    folder: Path
    world: Path
    command: Command
    rng: random.Random
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        world.run_in_process(self.world, self.command, self.folder / "run")
        directory = self._copy_inputs()
        start_time = time.monotonic()
        assert self._finish(directory) == "", "an undisturbed command must succeed"
        self.seconds = time.monotonic() - start_time
        self.expected = content(directory / self.command.out)
        shutil.rmtree(directory)
        self.counts = Counter[str]()
        if calls.is_possible() and self.ranks == 1:
            _, self.counts = run_undisturbed(self.world, self.command, self.folder)

    @property
    def ranks(self) -> int:
        """The number of ranks of the command."""
        return RANKS.get(self.command.name, 1)

    def _copy_inputs(self) -> Path:
        world.copy_inputs(self.world, self.command, self.folder / "run")
        return self.folder / "run"

    def _start(self, directory: Path) -> list[int]:
        """Start the ranks of the command; return their process IDs."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(self.ranks)}

        def prepare(rank: int) -> None:
            os.setsid()  # so that `_has_processes` recognizes the workers of a rank
            if self.ranks > 1:
                os.environ.update({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})

        return [
            forked.start(self.command.arguments, directory, self.folder / f"log-{rank}", partial(prepare, rank))
            for rank in range(self.ranks)
        ]

    def _finish(self, directory: Path) -> str:
        """Run the command to its end; return the errors of its ranks, or an empty string."""
        results = [forked.wait(child, self.folder / f"log-{n}") for n, child in enumerate(self._start(directory))]
        return "; ".join(f"exit {result.code}: {result.error}" for result in results if result.code != 0)

    def kill_once(self, directory: Path) -> bool:
        """Start the command and kill it; return False if it exited before the kill."""
        if self.counts and self.rng.random() < 0.5:
            name = self.rng.choices(list(self.counts), list(self.counts.values()))[0]
            fault = Fault(name, self.rng.randint(1, self.counts[name]), KILL)
            recorder = CallRecorder(directory, fault)
            is_killed = run_with_fault(self.command.arguments, recorder, self.folder / "log").code == -9
        else:
            is_killed = self._kill_after(directory, self.rng.uniform(0, self.seconds))
        self.tally.kills += is_killed
        self.tally.too_late += not is_killed
        self.tally.during_save += is_killed and any(directory.rglob(".*.tmp"))
        return is_killed

    def _kill_after(self, directory: Path, seconds: float) -> bool:
        children = self._start(directory)
        time.sleep(seconds)
        victims = children if self.rng.random() < 0.3 else [self.rng.choice(children)]
        for child in victims:
            os.kill(child, signal.SIGKILL)  # before the wait, no other process can have this ID
        if len(victims) < len(children):
            time.sleep(1)  # the other ranks may exit; after that they are killed, as by a launcher
            for child in children:
                os.kill(child, signal.SIGKILL)
        results = [forked.wait(child, self.folder / f"log-{n}") for n, child in enumerate(children)]
        for child, result in zip(children, results, strict=True):
            if child not in victims and result.code not in (0, 1, -9):
                self.tally.faults.append(f"the other rank exited with {result.code}: {result.error}")
            deadline = time.monotonic() + 30
            while _has_processes(child) and time.monotonic() < deadline:  # the workers of a rank exit with it
                time.sleep(0.01)
        return any(result.code == -9 for child, result in zip(children, results, strict=True) if child in victims)

    def run_once(self, max_kills: int) -> None:
        """Kill a run at most `max_kills` times, finish it, and compare its output with the expected one."""
        directory = self._copy_inputs()
        kills = [self.kill_once(directory) for _ in range(min(max_kills, self.rng.randint(1, IN_A_ROW)))]
        error = self._finish(directory)
        files = content(directory / self.command.out)
        if error or files != self.expected:
            different = [n for n in sorted({*files, *self.expected}) if files.get(n) != self.expected.get(n)]
            evidence = self.folder.parent / f"faulty-{self.tally.runs}-{self.command.name.replace(', ', '-')}"
            shutil.copytree(directory, evidence, dirs_exist_ok=True)
            self.tally.faults.append(f"after {kills}: {error or different}; the files are in {evidence}")
        self.tally.faults += unsound(directory / self.command.out)
        if left := [path.name for path in directory.rglob(".*.tmp")]:
            self.tally.faults.append(f"half-written files remain: {left}")
        self.tally.runs += 1
        shutil.rmtree(directory)


def _has_processes(session: int) -> bool:
    """Return True if a process of the session that a child started is still running."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session_id = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session_id) == session and state != "Z":
                return True
    return False


def campaign(
    folder: Path, names: Sequence[str], count: int, seed: int, report: Callable[[str], object] = print
) -> dict[str, Tally]:
    """Distribute `count` kills over the commands, and report each command; return the tallies by command."""
    artifacts = world.make(folder / "world", ())
    tallies = {}
    for number, name in enumerate(names):
        (workspace := folder / f"command-{number}").mkdir()
        attack = Attack(workspace, artifacts, commands()[name], random.Random(f"{seed} {name}"))
        required_kills = count // len(names) + (number < count % len(names))
        while attack.tally.kills < required_kills:
            attack.run_once(required_kills - attack.tally.kills)
            if attack.tally.runs % 10 == 0:
                report(f"{name}: {attack.tally}")
        tallies[name] = attack.tally
        report("\n".join([f"{name:18} {attack.tally}", *(f"    {line}" for line in attack.tally.faults)]))
    return tallies


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=COMMANDS)
    arguments = parser.parse_args()
    memory_disk = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(dir=memory_disk))
    tallies = campaign(folder, arguments.only or COMMANDS, arguments.count, arguments.seed)
    if not any(tally.faults for tally in tallies.values()):
        shutil.rmtree(folder)
    kills = sum(tally.kills for tally in tallies.values())
    during_save = sum(tally.during_save for tally in tallies.values())
    faults = sum(len(tally.faults) for tally in tallies.values())
    print(f"{kills} kills, {during_save} during a save, {faults} faults")
    return any(tally.faults for tally in tallies.values())


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
