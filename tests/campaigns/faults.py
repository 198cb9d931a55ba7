"""Let the n-th system call of a command fail: readers must see the old or the new state, and a second run must succeed.

    python -m tests.campaigns.faults                       all commands, kinds of calls and errors, with a few n each
    python -m tests.campaigns.faults --each 1000           all n
    python -m tests.campaigns.faults --only pretrain --error kill --error power

A call fails with an errno that the system may return for it (such as ENOSPC, EIO, EINTR or EMFILE), the process is
killed in the call, or the power fails. A power failure also loses everything that was not flushed: such a file gets the
content of its last flush, and a rename is undone unless its folder was flushed afterwards. The second run of the
command must end with the same bytes as an undisturbed run.
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
from tests.campaigns.forked import Result
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
# Keys whose values differ between runs: times, and fingerprints of files that contain times.
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
# Texts that differ between the pages of two runs: times, speeds, the version, and ids in drawings.
_IN_TEXT = re.compile(
    rb"[\d.]+ (?:s|min|minutes|seconds)\b|\| tokens per second.*|`?albert`? [\d.]+\d|\b[mp][0-9a-f]{10}\b"
)


@dataclass(frozen=True)
class Fault:
    """An error in the n-th call of a kind; n counts from 1, over the calls on files in the command's folder."""

    name: str
    number: int
    error: str

    def __str__(self) -> str:
        return f"{self.error} at {self.name} {self.number}"


@dataclass
class CallRecorder:
    """A recorder that counts the calls of a command, and injects a fault.

    hit: the file of the call that failed; flushed: the content of files at their last flush, by inode; unflushed: the
    files with writes that are not flushed, by inode; renamed: the old path, the new path and the replaced content of
    each rename whose folder is not flushed.
    """

    folder: Path
    fault: Fault | None = None
    counts: Counter[str] = field(default_factory=Counter)
    hit: Path | None = None
    flushed: dict[int, bytes] = field(default_factory=dict)
    unflushed: dict[int, Path] = field(default_factory=dict)
    renamed: list[tuple[Path, Path, bytes | None]] = field(default_factory=list)

    def __call__(self, call: Call) -> int | None:
        """Decide the result of a call; see `calls.Decide`."""
        if call.path.name == ".lock" or (self.hit and self.fault and self.fault.error in (KILL, POWER)):
            return None
        self.counts[call.name] += 1
        fault = self.fault
        if fault and (fault.name, fault.number) == (call.name, self.counts[call.name]):
            self.hit = call.path
            return 0 if fault.error in (KILL, POWER) else int(getattr(errno, fault.error))
        if fault and fault.error == POWER:
            self._record(call)
        return None

    def _record(self, call: Call) -> None:
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
                replaced = call.target.read_bytes() if call.target.is_file() else None
                self.renamed.append((call.path, call.target, replaced))

    def lose_power(self) -> None:
        """Undo the renames and writes that were not flushed."""
        for source, target, replaced in reversed(self.renamed):
            if os.path.lexists(target) and not os.path.lexists(source):  # the call has succeeded
                source.parent.mkdir(parents=True, exist_ok=True)
                target.rename(source)
                if replaced is not None:
                    target.write_bytes(replaced)
        for path in self.folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and (inode := path.stat().st_ino) in self.unflushed:
                flushed = self.flushed.get(inode, b"")
                with path.open("r+b") as file:  # retains the inode
                    file.truncate(0)
                    file.write(flushed)


def run(arguments: Sequence[str], recorder: CallRecorder, logs: Path) -> Result:
    """Run a command in the recorder's folder with the recorder's fault."""
    result = calls.run(arguments, recorder.folder, logs, recorder)
    if recorder.hit and recorder.fault and recorder.fault.error == POWER:
        recorder.lose_power()
    return result


def run_undisturbed(artifacts: Path, command: Command, folder: Path) -> tuple[dict[str, object], Counter[str]]:
    """Run a command without a fault on a copy of its inputs; return its output and the counts of its calls."""
    directory = folder / "undisturbed"
    world.copy_inputs(artifacts, command, directory)
    recorder = CallRecorder(directory)
    result = run(command.arguments, recorder, folder / "log")
    assert result.code == 0, result.err
    output = content(directory / command.out)
    shutil.rmtree(directory)
    return output, recorder.counts


class Campaign:
    """Faults in commands that read copies of the artifacts of `world`."""

    def __init__(self, folder: Path, commands: Sequence[str] = COMMANDS) -> None:
        self.commands = {name: command for name, command in world.commands_by_name().items() if name in commands}
        self.folder = folder
        self.world = world.make(folder / "world", world.tasks_for(self.commands.values()))
        self.expected: dict[str, dict[str, object]] = {}
        self.counts: dict[str, Counter[str]] = {}
        for name, command in self.commands.items():
            world.run_in_process(self.world, command, folder / "undisturbed")
            self.expected[name], self.counts[name] = run_undisturbed(self.world, command, folder)

    def faults(self, command: Command, per_command: int, errors: Sequence[str], rng: random.Random) -> Iterator[Fault]:
        """Yield at most `per_command` faults for each kind of call and each error that the call may return."""
        for name, count in sorted(self.counts[command.name].items()):
            for error in (*ERRORS[name], KILL, POWER):
                if not errors or error in errors:
                    for number in sorted(rng.sample(range(1, count + 1), min(per_command, count))):
                        yield Fault(name, number, error)

    def attempt(self, command: Command, fault: Fault) -> tuple[Result, bool, list[str]]:
        """Run a command with a fault, and again without.

        Return the first result, whether the fault's call was reached, and what was wrong with both results.
        """
        directory = self.folder / f"run-{command.name.partition(',')[0]}"
        world.copy_inputs(self.world, command, directory)
        recorder = CallRecorder(directory, fault)
        result = run(command.arguments, recorder, self.folder / "log")
        mistakes = list(_find_mistakes(command, directory, fault, recorder.hit, result)) if recorder.hit else []
        second = forked.run(command.arguments, directory, self.folder / "log-second")
        files = content(directory / command.out)
        is_folder_opened = recorder.hit is not None and recorder.hit.suffix == ".tmp" and recorder.hit.is_dir()
        if fault.error not in (KILL, POWER) and (fault.name == "unlink" or is_folder_opened):
            # A temporary file or folder that cannot be deleted may remain; its name is hidden. A folder is opened to
            # delete its files.
            files = {name: value for name, value in files.items() if ".tmp" not in name}
        if second.code != 0:
            mistakes.append(f"the second run exits with {second.code}: {second.error}")
        elif files != self.expected[command.name]:
            mistakes.append(f"the second run has another result: {_difference(files, self.expected[command.name])}")
        shutil.rmtree(directory)
        hit = recorder.hit.relative_to(directory) if recorder.hit else "not reached"
        return result, recorder.hit is not None, [f"{line} ({hit})" for line in mistakes]


def _find_mistakes(command: Command, folder: Path, fault: Fault, hit: Path, result: Result) -> Iterator[str]:
    """Yield what is wrong with the result of a command whose call on the file `hit` had a fault."""
    out = folder / command.out
    if fault.error in (KILL, POWER):
        if result.code not in (-9, 0, *DOCUMENTED):
            yield f"exit code {result.code}"
    else:
        if result.code not in DOCUMENTED and not (fault.error == "ENOMEM" and "out of memory" in result.err):
            yield f"exit code {result.code}: {result.error}"
        if "Traceback" in result.err:
            yield "a traceback"
        if result.code and not result.err.rstrip().rpartition("\n")[2].startswith("hint: "):
            yield f"no hint: {result.error}"
        is_cleaning_up = fault.name == "unlink" or hit.is_dir()  # a folder is opened to delete its files
        if not is_cleaning_up and (left := [p.name for p in folder.rglob("*.tmp")]):
            yield f"it leaves a half-written file: {left[0]}"
    yield from unsound(out)


def unsound(out: Path) -> Iterator[str]:
    """Yield the error of each visible directory that differs from its manifest."""
    for manifest in sorted(out.rglob(store.MANIFEST)) if out.is_dir() else ():
        if any(part.startswith(".") for part in manifest.relative_to(out).parts):
            continue  # readers ignore hidden directories
        try:
            store.verify(manifest.parent)
        except Exception as error:
            if not _is_being_published(manifest.parent):
                yield f"a reader gets the error {error}"


def _is_being_published(directory: Path) -> bool:
    """Return True if files are being moved into an existing directory, which readers ignore until it has a manifest."""
    return (directory / "request.json").exists() or (directory / "plan.json").exists()


def content(out: Path, names: Mapping[bytes, bytes] = MappingProxyType({})) -> dict[str, object]:
    """Return a command's output without times: for each file the hash of its bytes, or its JSON values.

    names: replacements of fingerprints of files that contain times.
    """
    if out.is_file():
        return {out.name: _content(out, names)}
    paths = [path for path in sorted(out.rglob("*")) if path.is_file() and "tensorboard" not in path.parts]
    paths = [path for path in paths if path.name not in (".lock", ".verified.json")]
    return {str(path.relative_to(out)): _content(path, names) for path in paths}


def _content(path: Path, names: Mapping[bytes, bytes]) -> object:
    data = path.read_bytes()
    if path.name == store.MANIFEST:  # its hashes differ, because files contain times; so only the names are compared
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
        return {key: _without_times(inner) for key, inner in value.items() if key not in _VARIES}
    return [_without_times(inner) for inner in value] if isinstance(value, list) else value


def _difference(actual: dict[str, object], expected: dict[str, object]) -> str:
    for name in sorted({*actual, *expected}):
        if actual.get(name) != expected.get(name):
            return f"{name} is {str(actual.get(name))[-200:]}, not {str(expected.get(name))[-200:]}"
    return "nothing"


def table(
    campaign: Campaign, per_command: int, errors: Sequence[str], seed: int, report: Callable[[str], object] = print
) -> int:
    """Inject faults into all commands, and report each command; return how many faults were handled wrongly."""
    faulty = 0
    for command in campaign.commands.values():
        rng = random.Random(f"{seed} {command.name}")
        codes: dict[str, Counter[str]] = {}
        for fault in campaign.faults(command, per_command, errors, rng):
            result, is_hit, mistakes = campaign.attempt(command, fault)
            outcome = f"{fault.error} {result.code}" if is_hit else f"{fault.error} not reached"
            codes.setdefault(fault.name, Counter())[outcome] += 1
            if mistakes:
                faulty += 1
                lines = [f"{command.name}: {fault}: exit {result.code}", *(f"    {line}" for line in mistakes)]
                report("\n".join(lines))
        for name, counts in codes.items():
            outcomes = ", ".join(f"{outcome}: {count}" for outcome, count in sorted(counts.items()))
            report(f"{command.name:18} {name:7} {campaign.counts[command.name][name]:5} calls   {outcomes}")
    return faulty


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--each", type=int, default=3, help="the number of calls for each command, kind of call and error"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=COMMANDS, help="run only this command (repeatable)")
    names = sorted({KILL, POWER}.union(*ERRORS.values()))
    parser.add_argument("--error", action="append", choices=names, help="inject only this error (repeatable)")
    arguments = parser.parse_args()
    if not calls.is_possible():
        print("this kernel cannot notify a process of system calls; use Linux 5.5 or newer on x86-64")
        return 77
    memory_disk = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory_disk) as folder:
        campaign = Campaign(Path(folder), arguments.only or COMMANDS)
        faulty = table(campaign, arguments.each, arguments.error or (), arguments.seed)
    print(f"{faulty} faults were handled wrongly")
    return bool(faulty)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(main())
