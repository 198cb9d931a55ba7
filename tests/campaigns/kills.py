"""SIGKILL at random moments, and the same command again, until it ends: in the bytes of one that nothing disturbed.

    python -m tests.campaigns.kills --count 1000
    python -m tests.campaigns.kills --count 100 --only "pretrain, 2 ranks"

Half of the kills come after a random part of the command's time, the others in a random system call on its files, most
of which are inside a save. Of several processes (ranks; workers are the command's own affair) one is killed, or all.
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
from tests.campaigns.faults import KILL, Fault, Watched, content, unsound
from tests.campaigns.faults import run as run_watched
from tests.campaigns.world import CPU, Command

IN_A_ROW = 4  # kills of one run before it may end
RANKS = {"pretrain, 2 ranks": 2}
WORKERS = ("data", "text", "--vocab", "vocabulary", "--workers", "4", "--out", "out")
COMMANDS = ("pretrain", "pretrain, 2 ranks", "data", "data, 4 workers", "finetune", "eval", "reproduce")
# Dropout makes of a resumed run that draws other numbers another run.
LONGER = ("-s", "schedule.total_steps=12", "-s", "model.hidden_dropout_prob=0.1", "-s", "train.save_every=1")


def commands() -> dict[str, Command]:
    """Return the commands to kill, by name."""
    by_name: dict[str, Command] = {}
    for command in (*world.commands(), world.reproduction()):
        by_name.setdefault(command.name, command)
    pretrain = replace(by_name["pretrain"], words=(*by_name["pretrain"].words, *LONGER))
    by_name |= {"pretrain": pretrain, "pretrain, 2 ranks": replace(pretrain, name="pretrain, 2 ranks")}
    by_name["data, 4 workers"] = Command("data, 4 workers", WORKERS, ("text", "vocabulary"))
    call = (*by_name["eval"].words[:-4], "--runs", "2", "--controls", "random", "--out", "out")
    by_name["eval"] = replace(by_name["eval"], words=call)
    assert set(CPU) <= set(pretrain.words)
    return {name: by_name[name] for name in COMMANDS}


@dataclass
class Tally:
    """The results of the kills of a command."""

    kills: int = 0
    in_a_save: int = 0
    too_late: int = 0
    runs: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.in_a_save} inside a save, over {self.runs} runs; {self.too_late} too late; "
            f"{len(self.faults)} faults"
        )


@dataclass
class Attack:
    """Kills of one command."""

    folder: Path
    world: Path
    command: Command
    rng: random.Random
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self) -> None:
        where = self._laid_out()
        world.here(self.command, where)  # once here, so that children start warm
        shutil.rmtree(where)
        where, began = self._laid_out(), time.monotonic()
        assert self._through(where) == "", "the command must succeed undisturbed"
        self.seconds = time.monotonic() - began
        self.expected = content(where / self.command.out)
        shutil.rmtree(where)
        where, watched = self._laid_out(), Watched(self.folder / "run")
        self.counts = Counter[str]()
        if calls.is_possible() and self.ranks == 1:
            run_watched(self.command.words, watched, self.folder / "log")
            self.counts = watched.counts
        shutil.rmtree(where)

    @property
    def ranks(self) -> int:
        """Return the number of processes of the command."""
        return RANKS.get(self.command.name, 1)

    def _laid_out(self) -> Path:
        world.lay_out(self.world, self.command, self.folder / "run")
        return self.folder / "run"

    def _start(self, where: Path) -> list[int]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(self.ranks)}

        def become(rank: int) -> None:
            os.setsid()
            if self.ranks > 1:
                os.environ.update({**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})

        return [
            forked.start(self.command.words, where, self.folder / f"log-{rank}", partial(become, rank))
            for rank in range(self.ranks)
        ]

    def _through(self, where: Path) -> str:
        """Run to the end; what went wrong, if anything did."""
        ended = [forked.wait(child, self.folder / f"log-{n}") for n, child in enumerate(self._start(where))]
        return "; ".join(f"exit {one.code}: {one.error}" for one in ended if one.code != 0)

    def kill_once(self, where: Path) -> bool:
        """Start it and kill it; whether it was still there to be killed."""
        if self.counts and self.rng.random() < 0.5:
            name = self.rng.choices(list(self.counts), list(self.counts.values()))[0]
            fault = Fault(name, self.rng.randint(1, self.counts[name]), KILL)
            hit = run_watched(self.command.words, Watched(where, fault), self.folder / "log").code == -9
        else:
            hit = self._kill_after(where, self.rng.uniform(0, self.seconds))
        self.tally.kills += hit
        self.tally.too_late += not hit
        self.tally.in_a_save += hit and any(where.rglob(".*.tmp"))
        return hit

    def _kill_after(self, where: Path, seconds: float) -> bool:
        children = self._start(where)
        time.sleep(seconds)
        victims = children if self.rng.random() < 0.3 else [self.rng.choice(children)]
        for child in victims:
            os.kill(child, signal.SIGKILL)  # not yet waited for, so it is ours
        if len(victims) < len(children):
            time.sleep(1)  # the others may end by themselves; if not, they are ended as a launcher ends them
            for child in children:
                os.kill(child, signal.SIGKILL)
        ended = [forked.wait(child, self.folder / f"log-{n}") for n, child in enumerate(children)]
        for child, one in zip(children, ended, strict=True):
            if child not in victims and one.code not in (0, 1, -9):
                self.tally.faults.append(f"the other rank ended with {one.code}: {one.error}")
            deadline = time.monotonic() + 30
            while _has_processes(child) and time.monotonic() < deadline:  # its workers end with it
                time.sleep(0.01)
        return any(one.code == -9 for child, one in zip(children, ended, strict=True) if child in victims)

    def run_once(self, most: int) -> None:
        """Kill a run some times (`most` at most), let it end, and compare."""
        where = self._laid_out()
        kills = [self.kill_once(where) for _ in range(min(most, self.rng.randint(1, IN_A_ROW)))]
        wrong = self._through(where)
        files = content(where / self.command.out)
        if wrong or files != self.expected:
            different = [n for n in sorted({*files, *self.expected}) if files.get(n) != self.expected.get(n)]
            evidence = self.folder.parent / f"kept-{self.tally.runs}-{self.command.name.replace(', ', '-')}"
            shutil.copytree(where, evidence, dirs_exist_ok=True)
            self.tally.faults.append(f"after {kills}: {wrong or different}; kept as {evidence}")
        self.tally.faults += unsound(where / self.command.out)
        if left := [p.name for p in where.rglob(".*.tmp")]:
            self.tally.faults.append(f"left half-written: {left}")
        self.tally.runs += 1
        shutil.rmtree(where)


def _has_processes(session: int) -> bool:
    """Return True if a process of the session that a child started is still running."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session_id = entry.read_text().rpartition(")")[2].split()[:4]
            if int(session_id) == session and state != "Z":
                return True
    return False


def campaign(
    folder: Path, names: Sequence[str], count: int, seed: int, say: Callable[[str], object] = print
) -> dict[str, Tally]:
    """`count` kills, shared out over the commands; a line for each command as it ends."""
    made, tallies = world.make(folder / "world", ()), {}
    for number, name in enumerate(names):
        (workspace := folder / f"of-{number}").mkdir()
        attack = Attack(workspace, made, commands()[name], random.Random(f"{seed} {name}"))
        wanted = count // len(names) + (number < count % len(names))
        while attack.tally.kills < wanted:
            attack.run_once(wanted - attack.tally.kills)
            if attack.tally.runs % 10 == 0:
                say(f"{name}: {attack.tally}")
        tallies[name] = attack.tally
        say("\n".join([f"{name:18} {attack.tally}", *(f"    {line}" for line in attack.tally.faults)]))
    return tallies


def main() -> int:
    """The command."""
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
    total = (sum(t.kills for t in tallies.values()), sum(t.in_a_save for t in tallies.values()))
    print(f"{total[0]} kills, {total[1]} inside a save, {sum(len(t.faults) for t in tallies.values())} faults")
    return any(tally.faults for tally in tallies.values())


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
