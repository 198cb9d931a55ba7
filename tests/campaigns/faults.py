"""The n-th system call fails: readers see the old state or the new, and the same command then ends in the same bytes.

    python -m tests.campaigns.faults                       the table: every kind of call, command and error, some n each
    python -m tests.campaigns.faults --each 1000           every n
    python -m tests.campaigns.faults --only "pretrain" --errors kill,power

What a call ends with: ENOSPC, EIO, EINTR or EMFILE, each where the system may say so; the process killed in it; or the
power lost, which also drops what was written and not flushed: such files fall back to what they held when they were
last flushed, or before, and a rename whose folder was not flushed after it did not happen.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from albert_cli import store
from tests.campaigns import calls, forked, world
from tests.campaigns.calls import Call
from tests.campaigns.damage import DOCUMENTED
from tests.campaigns.forked import Ended
from tests.campaigns.world import Command

KILL, POWER = "kill", "power"
ERRORS = {
    "open": ("EIO", "EINTR", "EMFILE", "ENOSPC"),
    "write": ("ENOSPC", "EIO", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EINTR"),
    "rename": ("EIO", "ENOSPC"),
    "link": ("EIO", "ENOSPC"),
    "unlink": ("EIO",),
    "mkdir": ("ENOSPC", "EIO"),
    "chmod": ("EIO",),
    "mmap": ("EIO", "ENOMEM"),
}
COMMANDS = ("vocab", "data", "pretrain", "pretrain, resumed", "finetune", "eval", "predict", "report", "reproduce")
# What a second run has otherwise; a fingerprint of what has times in it too.
_VARIES = {
    "seconds",
    "wall_seconds",
    "tokens_per_second",
    "lines_per_second",
    "mfu",
    "created",
    "stamps",
    "fingerprint",
    "versions",
    "created_by",
}
# The same in pages: times, speeds, the version, and ids in drawings.
_IN_TEXT = re.compile(
    rb"[\d.]+ (?:s|min|minutes|seconds)\b|\| tokens per second.*|`?albert`? [\d.]+\d|\b[mp][0-9a-f]{10}\b"
)


@dataclass(frozen=True)
class Fault:
    """The error of the n-th call of a kind, counted from 1 over the calls below the command's folder."""

    name: str
    number: int
    error: str

    def __str__(self) -> str:
        return f"{self.error} at {self.name} {self.number}"


@dataclass
class Watched:
    """A command's calls, counted; one of them may fail, and what is not flushed may be lost with it."""

    folder: Path
    fault: Fault | None = None
    counts: Counter[str] = field(default_factory=Counter)
    hit: Path | None = None
    flushed: dict[int, bytes] = field(default_factory=dict)  # by inode: what a file held when it was last flushed
    unflushed: dict[int, Path] = field(default_factory=dict)
    renamed: list[tuple[Path, Path, bytes | None]] = field(default_factory=list)  # from, to, the file that stood there

    def __call__(self, call: Call) -> int | None:
        """Decide the call's result; see `calls.watch`."""
        if call.path.name == ".lock" or (self.hit and self.fault and self.fault.error in (KILL, POWER)):
            return None
        self.counts[call.name] += 1
        fault = self.fault
        if fault and (fault.name, fault.number) == (call.name, self.counts[call.name]):
            self.hit = call.path
            return 0 if fault.error in (KILL, POWER) else int(getattr(errno, fault.error))
        if fault and fault.error == POWER:
            self._note(call)
        return None

    def _note(self, call: Call) -> None:
        with suppress(OSError):
            inode = call.path.stat().st_ino
            if call.name == "open" and call.path.is_file() and inode not in self.unflushed:
                self.flushed.setdefault(inode, call.path.read_bytes())
            elif call.name == "write":
                self.unflushed[inode] = call.path
            elif call.name == "fsync" and call.path.is_file():
                self.flushed[inode] = call.path.read_bytes()
                self.unflushed.pop(inode, None)
            elif call.name == "fsync":
                self.renamed = [entry for entry in self.renamed if entry[1].parent != call.path]
            elif call.target is not None:
                stood = call.target.read_bytes() if call.target.is_file() else None
                self.renamed.append((call.path, call.target, stood))

    def lose_power(self) -> None:
        """Put every file and every name that was written and not flushed back to what the disk has of it."""
        for source, target, stood in reversed(self.renamed):
            if os.path.lexists(target) and not os.path.lexists(source):  # it was carried out
                source.parent.mkdir(parents=True, exist_ok=True)
                target.rename(source)
                if stood is not None:
                    target.write_bytes(stood)
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and (inode := path.stat().st_ino) in self.unflushed:
                held = self.flushed.get(inode, b"")
                with path.open("r+b") as file:  # the same inode
                    file.truncate(0)
                    file.write(held)


def run(words: Sequence[str], watched: Watched, logs: Path) -> Ended:
    """Run a command below the folder with its calls watched."""
    ended = calls.run(words, watched.folder, logs, watched)
    if watched.hit and watched.fault and watched.fault.error == POWER:
        watched.lose_power()
    return ended


class Campaign:
    """Faults of one seed over one world."""

    def __init__(self, folder: Path, commands: Sequence[str] = COMMANDS) -> None:
        named: dict[str, Command] = {}
        for command in (*world.commands(), world.reproduction()):
            if command.name in commands:
                named.setdefault(command.name, command)
        self.commands, self.folder = named, folder
        self.world = world.make(folder / "world", world.tasks_for(named.values()))
        self.expected: dict[str, dict[str, object]] = {}
        self.counts: dict[str, Counter[str]] = {}
        for command in named.values():
            where = self._laid_out(command, "through")
            world.here(command, where)  # once in this process, which imports what it needs
            shutil.rmtree(where)
            where = self._laid_out(command, "through")
            watched = Watched(where)
            ended = run(command.words, watched, self.folder / "log")
            assert ended.code == 0, ended.err
            self.expected[command.name] = content(where / command.out)
            self.counts[command.name] = watched.counts
            shutil.rmtree(where)

    def _laid_out(self, command: Command, name: str) -> Path:
        world.lay_out(self.world, command, self.folder / name)
        return self.folder / name

    def faults(self, command: Command, per_command: int, errors: Sequence[str], rng: random.Random) -> Iterator[Fault]:
        """At most `each` calls of every kind, with every error that it may end with."""
        for name, count in sorted(self.counts[command.name].items()):
            for error in (*ERRORS[name], KILL, POWER):
                if not errors or error in errors:
                    for number in sorted(rng.sample(range(1, count + 1), min(per_command, count))):
                        yield Fault(name, number, error)

    def attempt(self, command: Command, fault: Fault) -> tuple[Ended, list[str]]:
        """One fault, then the same command undisturbed; how the first ended, and what was wrong."""
        where = self._laid_out(command, f"run-{command.name.partition(',')[0]}")
        watched = Watched(where, fault)
        ended = run(command.words, watched, self.folder / "log")
        wrong = list(_judge(command, where, fault, watched.hit, ended)) if watched.hit else []
        again = forked.run(command.words, where, self.folder / "log-again")
        files = content(where / command.out)
        if fault.name == "unlink" and fault.error in ERRORS["unlink"]:  # what could not be deleted may stay, hidden
            files = {name: value for name, value in files.items() if ".tmp" not in name}
        if again.code != 0:
            wrong.append(f"the same command then ends with {again.code}: {again.error}")
        elif files != self.expected[command.name]:
            wrong.append(f"the same command then ends otherwise: {_difference(files, self.expected[command.name])}")
        shutil.rmtree(where)
        hit = watched.hit.relative_to(where) if watched.hit else "not reached"
        return ended, [f"{line} ({hit})" for line in wrong]


def _judge(command: Command, folder: Path, fault: Fault, hit: Path, ended: Ended) -> Iterator[str]:
    out = folder / command.out
    if fault.error in (KILL, POWER):
        if ended.code not in (-9, 0, *DOCUMENTED):
            yield f"exit code {ended.code}"
    else:
        if ended.code not in DOCUMENTED and not (fault.error == "ENOMEM" and "out of memory" in ended.err):
            yield f"exit code {ended.code}: {ended.error}"
        if "Traceback" in ended.err:
            yield "a traceback"
        if ended.code and not ended.err.rstrip().rpartition("\n")[2].startswith("hint: "):
            yield f"no hint: {ended.error}"
        is_cleaning_up = fault.name == "unlink" or hit.is_dir()  # the latter is opened to be emptied
        if not is_cleaning_up and (left := [p.name for p in folder.rglob("*.tmp")]):
            yield f"left half-written: {left[0]}"
    yield from unsound(out)


def unsound(out: Path) -> Iterator[str]:
    """Yield the error of each visible directory that differs from its manifest."""
    for manifest in sorted(out.rglob(store.MANIFEST)) if out.is_dir() else ():
        if any(part.startswith(".") for part in manifest.relative_to(out).parts):
            continue  # hidden: no reader looks there
        try:
            store.verify(manifest.parent)
        except Exception as error:
            if not _is_being_published(manifest.parent):
                yield f"a reader sees {error}"


def _is_being_published(directory: Path) -> bool:
    """Return True if the files move into an existing directory: its manifest comes last, and readers ignore it."""
    return (directory / "request.json").exists() or (directory / "plan.json").exists()


def content(out: Path, names: Mapping[bytes, bytes] = MappingProxyType({})) -> dict[str, object]:
    """Return a command's output without times: by file the hash of its bytes, or its values.

    `names` stand for fingerprints of what has times in it.
    """
    if out.is_file():
        return {out.name: _content(out, names)}
    paths = (p for p in sorted(out.rglob("*")) if p.is_file() and "tensorboard" not in p.parts)
    return {str(p.relative_to(out)): _content(p, names) for p in paths if p.name not in (".lock", ".verified.json")}


def _content(path: Path, names: Mapping[bytes, bytes]) -> object:
    data = path.read_bytes()
    if path.name == store.MANIFEST:  # it knows files that have times in them; what it names is compared by itself
        return sorted(json.loads(data)["files"])
    if path.suffix in (".json", ".jsonl", ".toml", ".md", ".html"):
        for fingerprint, name in names.items():
            data = data.replace(fingerprint, name)
    if path.suffix in (".json", ".jsonl") and path.name != "tokenizer.json":
        with suppress(ValueError):
            lines = [data] if path.suffix == ".json" else data.splitlines()
            return [_without_times(json.loads(line)) for line in lines]
    if path.suffix in (".html", ".md"):
        data = _IN_TEXT.sub(b"", data)
    return hashlib.sha256(data).hexdigest()


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in _VARIES}
    return [_without_times(v) for v in value] if isinstance(value, list) else value


def _difference(actual: dict[str, object], expected: dict[str, object]) -> str:
    for name in sorted({*actual, *expected}):
        if actual.get(name) != expected.get(name):
            return f"{name} is {str(actual.get(name))[-200:]}, not {str(expected.get(name))[-200:]}"
    return "nothing"


def table(
    campaign: Campaign, per_command: int, errors: Sequence[str], seed: int, say: Callable[[str], object] = print
) -> int:
    """Do the faults of all commands; a line for each command and kind of call. The number of those that went wrong."""
    faulty = 0
    for command in campaign.commands.values():
        rng = random.Random(f"{seed} {command.name}")
        codes: dict[str, Counter[str]] = {}
        for fault in campaign.faults(command, per_command, errors, rng):
            ended, wrong = campaign.attempt(command, fault)
            codes.setdefault(fault.name, Counter())[f"{fault.error} {ended.code}"] += 1
            if wrong:
                faulty += 1
                say("\n".join([f"{command.name}: {fault}: exit {ended.code}", *(f"    {line}" for line in wrong)]))
        for name, counts in codes.items():
            ends = ", ".join(f"{outcome}: {count}" for outcome, count in sorted(counts.items()))
            say(f"{command.name:18} {name:7} {campaign.counts[command.name][name]:5} calls   {ends}")
    return faulty


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--each", type=int, default=3, help="calls of every kind, command and error")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", help="a command; several times for several")
    parser.add_argument("--errors", default="", help="of ENOSPC EIO EINTR EMFILE kill power, with commas")
    arguments = parser.parse_args()
    if not calls.is_possible():
        print("this kernel does not hand calls over (Linux 5.5 on x86-64 does)")
        return 77
    memory_disk = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory_disk) as folder:
        campaign = Campaign(Path(folder), arguments.only or COMMANDS)
        errors = arguments.errors.split(",") if arguments.errors else ()
        faulty = table(campaign, arguments.each, errors, arguments.seed)
    print(f"{faulty} faults went wrong")
    return bool(faulty)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
