"""Damage a file that a command reads, and check that the command rejects it properly or is not affected.

    python -m tests.campaigns.damage --seed 1 --count 20000
    python -m tests.campaigns.damage --seed 1 --case 4711      repeat one case and show its messages

The seed and the number of a case determine the command, one of its input files, the damage (to bits, length, lines or
JSON values, or a folder or a link instead of the file), and whether the manifest of the file is kept, removed, or
sealed again after the damage. These are faults: an undocumented exit code, a traceback, an error that does not name
the file or has no hint, a half-written file, a changed input, too much time or memory, and, most serious, accepting a
changed file that a manifest covers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.data.shards import SUFFIXES
from tests.campaigns import calls, forked, world
from tests.campaigns.calls import Call
from tests.campaigns.forked import Result
from tests.campaigns.world import Command

DOCUMENTED = (0, 2, 3, 4, 5, 6, 7, 75, 77)
MEMORY = 2 << 30  # bytes, including the 0.5 GiB that a fork shares with this process
MODES = ("kept",) * 6 + ("sealed again",) * 3 + ("removed",)
RESTORED = 0.03  # the fraction of the rejected files that are restored, after which the command must succeed


# ---------------------------------------------------------------- damage


def _nested(opening: str = "[", closing: str = "]") -> str:
    return opening * 100_000 + closing * 100_000


# The text of JSON values, some of which are invalid or would never be written by Python.
VALUES: tuple[str, ...] = (
    "null", "true", "false", "0", "1", "-1", "0.5", "-0.0", "7", "100000000000000000000", "9" * 5000, "1e308", "1e999",
    "NaN", "-Infinity", '""', '"x"', '"12"', json.dumps("x" * 100_000), '"\\ud800"', '"\\u001b[31mred"', '"a\\u0000b"',
    '"../../outside"', '"/etc/passwd"', "[]", "[null]", "[[]]", '["a", 1]', "{}", '{"a": 1}', '{"": {}}', _nested(),
    _nested('{"a":', "}"), "",
)  # fmt: skip
_PLACEHOLDER = "@place@"


def _iter_slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a JSON document; a key is also the index of a list."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value[:50]))
    for key, inner in pairs:
        yield value, key
        yield from _iter_slots(inner)


def _json(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """Replace a value of a document or the whole document, or remove or rename a key."""
    value = json.loads(data)
    slots = list(_iter_slots(value))
    raw = rng.choice(VALUES)
    if not slots or rng.random() < 0.1:
        return f"the document becomes {raw[:30]}", raw.encode()
    # Half of the values are at the top level, which has few of all values.
    container, key = rng.choice(slots if rng.random() < 0.5 else [slot for slot in slots if slot[0] is value])
    chance = rng.random()
    if chance < 0.2:
        del container[key]
        return f"without {key!r}", json.dumps(value).encode()
    if chance < 0.3 and isinstance(container, dict):
        container[f"{key}x"] = container.pop(key)
        return f"{key!r} is renamed", json.dumps(value).encode()
    container[key] = _PLACEHOLDER
    return f"{key!r} becomes {raw[:30]}", json.dumps(value).replace(f'"{_PLACEHOLDER}"', raw).encode()


def _json_line(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = data.splitlines(keepends=True)
    number = rng.randrange(len(lines))
    description, line = _json(lines[number], rng)
    return f"line {number + 1}: {description}", b"".join([*lines[:number], line + b"\n", *lines[number + 1 :]])


def _safetensors(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    size = int.from_bytes(data[:8], "little")
    description, header = _json(data[8 : 8 + size], rng)
    return f"header: {description}", len(header).to_bytes(8, "little") + header + data[8 + size :]


def _toml(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = data.decode().splitlines()
    number = rng.choice([n for n, line in enumerate(lines) if "=" in line])
    key = lines[number].partition("=")[0]
    raw = rng.choice(VALUES)
    lines[number] = f"{key}= {raw}"
    return f"{key.strip()} = {raw[:30]}", "\n".join(lines).encode()


def _flip(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    changed = bytearray(data)
    for _ in range(count := rng.choice((1, 1, 1, 8, 64))):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return f"{count} bits", bytes(changed)


def _cut(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    length = rng.choice((0, 1, len(data) - 1, rng.randrange(len(data))))
    return f"cut to {length} of {len(data)} bytes", data[:length]


def _insert(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    position = rng.choice((0, len(data), rng.randrange(len(data))))
    extra = rng.choice((
        rng.randbytes(rng.choice((1, 4, 64))), b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b'"', b",",
        b"\xc3", "\u2028".encode(), b"\x1b[2J", b"x" * 3_000_000, b"x \n" * 10_000, b"[" * 100_000, b"9" * 5_000,
    ))  # fmt: skip
    return f"{extra[:12]!r} ({len(extra)} bytes) inserted at {position}", data[:position] + extra + data[position:]


def _blocks(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    block = data[first:last]
    description, new = rng.choice((("zeroed", bytes(len(block))), ("doubled", block * 2), ("removed", b""),
                            ("random", rng.randbytes(len(block)))))  # fmt: skip
    return f"bytes {first} to {last} {description}", data[:first] + new + data[last:]


def _lines(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = data.splitlines(keepends=True)
    first = rng.randrange(len(lines))
    second = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            lines[first], lines[second] = lines[second], lines[first]
            return f"lines {first + 1} and {second + 1} swapped", b"".join(lines)
        case 1:
            return f"line {first + 1} doubled", b"".join([*lines[: first + 1], *lines[first:]])
        case 2:
            return f"line {first + 1} removed", b"".join([*lines[:first], *lines[first + 1 :]])
    return "lines end with CRLF", data.replace(b"\n", b"\r\n")


Damage = Callable[[bytes, random.Random], tuple[str, bytes]]
_STRUCTURED: dict[str, Damage] = {
    ".json": _json, ".jsonl": _json_line, ".safetensors": _safetensors, ".toml": _toml,
}  # fmt: skip
_BYTES: tuple[Damage, ...] = (_flip, _flip, _cut, _insert, _insert, _blocks, _lines)
_REPLACEMENTS = ("a folder", "a folder with a file", "a dangling link", "a link to itself", "nothing")


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file; return its description."""
    if rng.random() < 0.08:
        replacement = rng.choice(_REPLACEMENTS)
        path.unlink()
        if replacement.startswith("a folder"):
            path.mkdir()
            if replacement.endswith("file"):
                (path / "file").write_text("something")
        elif "link" in replacement:
            path.symlink_to("nowhere" if "dangling" in replacement else path.name)
        return f"replaced by {replacement}"
    data = path.read_bytes()
    if not data:
        path.write_bytes(rng.randbytes(16))
        return "16 bytes written to an empty file"
    structured = _STRUCTURED.get(path.suffix)
    if structured is None and path.parent.name in ("middle", "high"):  # RACE has JSON in files named .txt
        structured = _json
    change = structured if structured is not None and rng.random() < 0.6 else rng.choice(_BYTES)
    description, changed = change(data, rng)
    path.write_bytes(changed)
    return description


# ---------------------------------------------------------------- cases


@dataclass(frozen=True)
class Case:
    """A damaged file, the command that read it, and the result."""

    number: int
    command: Command
    file: str
    description: str
    mode: str
    result: Result
    faults: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"case {self.number}: {self.command.name} with {self.file}: {self.description}; manifest {self.mode}"]
        lines += [f"    albert {' '.join(self.command.arguments)}"]
        lines += [f"    exit {self.result.code}, {self.result.seconds:.2f} s: {fault}" for fault in self.faults]
        return "\n".join([*lines, *(f"    | {line[:300]}" for line in self.result.err.splitlines()[-4:])])


class Campaign:
    """The cases of one seed, with copies of the artifacts of `world`."""

    def __init__(self, folder: Path, seed: int, commands: Sequence[Command] = ()) -> None:
        self.folder = folder
        self.seed = seed
        self.commands = commands or list(world.commands())
        self.world = world.make(folder / "world", world.tasks_for(self.commands))
        self.files_read = {command: self._list_files_read(command) for command in self.commands}
        self.commands = [command for command in self.commands if self.files_read[command]]
        for command in {command.name: command for command in self.commands}.values():
            world.run_in_process(self.world, command, folder / "warm")

    def case(self, number: int) -> Case:
        """Run the case with this number."""
        rng = random.Random(f"{self.seed} {number}")
        command = rng.choices(self.commands, [c.weight for c in self.commands])[0]
        folder = self.folder / f"case-{number}"
        world.copy_inputs(self.world, command, folder)
        path = self._choose(folder, command, rng)
        name = path.relative_to(folder).as_posix()
        manifest = _manifest_of(path, folder)
        mode = rng.choice(MODES) if manifest is not None and path.name != store.MANIFEST else "kept"
        if mode == "sealed again" and path.suffix in SUFFIXES:
            mode = "kept"  # only the manifest protects the arrays of a shard
        before = _content(path)
        description = damage(path, rng)
        changed = _content(path) != before
        if manifest is not None and mode == "removed":
            (manifest / store.MANIFEST).unlink()
        elif manifest is not None and mode == "sealed again":
            _seal_again(manifest)
        inputs = _snapshot(folder, command.out)
        result = forked.run(command.arguments, folder, self.folder / f"log-{number}")
        faults = list(_find_faults(command, folder, path, result, inputs))
        # These messages report that the command noticed the damage and did not use the file.
        warning = rf"renamed to|set aside|is not used|making it again|^warning: {re.escape(name)}:"
        is_rejected = bool(re.search(warning, result.err, re.MULTILINE))
        # Without a manifest a step's directory is no checkpoint, and is skipped.
        is_rejected = is_rejected or (path.name == store.MANIFEST and not path.exists())
        # `inspect` without --verify verifies only data.
        is_unverified = (
            command.arguments[0] == "inspect" and "--verify" not in command.arguments and not os.path.lexists(path)
        )
        is_covered = manifest is not None and mode == "kept"
        if result.code == 0 and is_covered and changed and not is_rejected and not is_unverified:
            faults.append("ACCEPTED, although the manifest covers the file")
        if result.code != 0 and not faults and mode != "sealed again" and rng.random() < RESTORED:
            faults += self._restore(command, folder, name, manifest)
        shutil.rmtree(folder)
        for end in (".out", ".err"):
            (self.folder / f"log-{number}{end}").unlink()
        return Case(number, command, name, description, mode, result, tuple(faults))

    def _list_files_read(self, command: Command) -> list[Path]:
        """Return the files below its folder that a command opens; a file next to the world caches them."""
        opened: set[Path] = set()
        cache = self.folder / f"reads {' '.join(command.arguments).replace('/', ' ')}"
        if not cache.is_file():

            def record(call: Call) -> None:
                if call.name == "open":
                    opened.add(call.path.relative_to(folder))

            world.copy_inputs(self.world, command, folder := self.folder / "reading")
            files = (p for p in folder.rglob("*") if p.is_file() and p.name not in (".lock", "README.md"))
            existing = {p.relative_to(folder) for p in files}
            result = calls.run(command.arguments, folder, self.folder / "log", record)
            assert result.code == 0, f"{command.arguments} with undamaged files: {result.err}"
            shutil.rmtree(folder)
            cache.write_text("\n".join(sorted(map(str, existing & opened))))
        return [Path(line) for line in cache.read_text().splitlines()]

    def _choose(self, folder: Path, command: Command, rng: random.Random) -> Path:
        """Choose a file that the command reads: first a kind of file, then one of this kind."""
        kinds: dict[str, list[Path]] = {}
        for path in self.files_read[command]:
            kind = path.name if path.suffix in (".json", ".toml", ".model", ".jsonl") else path.suffix
            kinds.setdefault(f"{kind} of {path.parts[0]}", []).append(path)
        return folder / rng.choice(kinds[rng.choice(sorted(kinds))])

    def _restore(self, command: Command, folder: Path, name: str, manifest: Path | None) -> Iterator[str]:
        """Restore the file and its manifest, and run the command again; yield a fault if it does not succeed."""
        restored_names = [name]
        if manifest is not None and manifest.is_dir():
            restored_names.append((manifest / store.MANIFEST).relative_to(folder).as_posix())
        for restored_name in restored_names:
            target = folder / restored_name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            if target.parent.is_dir():
                target.unlink(missing_ok=True)
                shutil.copy2(self.world / restored_name, target)
        result = forked.run(command.arguments, folder, self.folder / "log-restored")
        if result.code != 0:
            yield f"with the restored file, the same command exits with {result.code}: {result.error}"


def _content(path: Path) -> bytes | str | None:
    if path.is_symlink():
        return str(path.readlink())
    if path.name == store.MANIFEST:  # compared by its values, which other white space does not change
        with suppress(OSError, ValueError, RecursionError):
            return repr(json.loads(path.read_bytes()))
    return path.read_bytes() if path.is_file() else None


def _snapshot(folder: Path, excluded: str) -> dict[str, bytes | str | None]:
    """Return the contents of all files except the output."""
    hidden = (".lock", ".verified.json")  # these are no part of an artifact
    paths = [path for path in sorted(folder.rglob("*")) if path.name not in hidden]
    inputs = [path for path in paths if path.relative_to(folder).parts[0] != excluded]
    return {str(path.relative_to(folder)): _content(path) for path in inputs}


def _manifest_of(path: Path, top: Path) -> Path | None:
    """Return the directory below `top` whose manifest covers the file; None if there is none."""
    for directory in path.parents:
        if directory == top:
            return None
        if (directory / store.MANIFEST).is_file():
            covered = json.loads((directory / store.MANIFEST).read_text())["files"]
            if path.relative_to(directory).as_posix() in covered or path.name == store.MANIFEST:
                return directory
    return None


def _seal_again(directory: Path) -> None:
    """Write a manifest of the current files, as if a program had written the damage on purpose."""
    old = json.loads((directory / store.MANIFEST).read_text())
    new = store.seal(directory, old["kind"], old["parents"])
    facts = directory.parents[1] / "data.json"
    if old["kind"] == "shard" and facts.is_file():  # it has the fingerprint of each shard
        values = json.loads(facts.read_text())
        if directory.name in values["fingerprints"]:
            values["fingerprints"][directory.name] = new.fingerprint()
            store.write_json(facts, values)
            _seal_again(facts.parent)


def _find_faults(command: Command, folder: Path, path: Path, result: Result, inputs: dict[str, Any]) -> Iterator[str]:
    """Yield the faults of a result, except that the command accepted a changed file."""
    if result.code not in DOCUMENTED:
        yield f"exit code {result.code}"
    is_longer = result.code == 75 and path.suffix == ".toml"  # a recipe that has lost a line may train for long
    if result.code == 75 and not is_longer:
        yield "stopped because it took too long"
    if "Traceback" in result.err or "Exception ignored" in result.err:
        yield "a traceback"
    lines = [line for line in result.err.splitlines() if line.strip()]
    # A learning rate that is valid but very large lets the run diverge; the error names the setting.
    is_diverged = result.code == 5 and path.suffix == ".toml" and "optimizer.lr" in result.err
    if result.code != 0:
        if result.out:
            yield f"stdout has {result.out[:60]!r}"
        if sum(line.startswith("error: ") for line in lines) != 1:
            yield "not exactly one error line"
        elif not lines[-1].startswith("hint: "):
            yield "no hint"
        elif not is_longer and not is_diverged and not names_file("\n".join(lines[-2:]), path, folder, command):
            yield "the file is not named"
        if len(result.error) > 1000:
            yield f"an error of {len(result.error)} characters"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", result.err + result.out):
        yield "it prints control characters"
    if result.memory > MEMORY:
        yield f"{result.memory >> 20} MB of memory"
    if left := [str(p.relative_to(folder)) for p in folder.rglob("*.tmp")]:
        yield f"it leaves a half-written file: {left[0]}"
    after = _snapshot(folder, command.out)
    if changed := [name for name, content in inputs.items() if after.get(name) != content]:
        yield f"it changes an input: {changed[0]}"
    yield from _find_unsound_output(folder / command.out, path)


def names_file(text: str, path: Path, folder: Path, command: Command) -> bool:
    """Return True if an error names the file, a directory that contains it, or the recipe.

    A directory such as `data` is named if its path is followed by a slash, a colon or a quotation mark, or ends a line;
    a word within a sentence is no name.
    """
    # A short stem, such as the "a" of `a.txt`, may be a word of the sentence.
    files = [path.name, path.stem] if len(path.stem) > 3 else [path.name]
    files += [argument for argument in command.arguments if path.suffix == ".toml" and argument.endswith(".toml")]
    directories = [parent.as_posix() for parent in path.relative_to(folder).parents if parent.name]
    directories += [command.out] if command.resumes else []  # the output was written from the undamaged file
    patterns = [rf"{re.escape(name)}(?![\w-])" for name in files]
    patterns += [rf"{re.escape(name)}(?=[/:'\"]|$)" for name in directories]
    return any(re.search(rf"(?<![\w-]){pattern}", text, re.MULTILINE) for pattern in patterns)


def _find_unsound_output(out: Path, damaged: Path) -> Iterator[str]:
    """Yield the error of each output directory that differs from its manifest, except the damaged one."""
    for manifest in sorted(out.rglob(store.MANIFEST)) if out.is_dir() else ():
        if manifest.parent not in damaged.parents and not manifest.parent.name.startswith("damaged-"):
            try:
                store.verify(manifest.parent)
            except Exception as error:
                yield f"the output is not sound: {error}"


# ---------------------------------------------------------------- campaigns


@dataclass
class Tally:
    """The results of a campaign."""

    cases: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    faulty: list[Case] = field(default_factory=list)
    slowest: Case | None = None
    largest: Case | None = None

    def add(self, case: Case) -> None:
        self.cases += 1
        self.codes[case.result.code] += 1
        if case.faults:
            self.faulty.append(case)
        if self.slowest is None or case.result.seconds > self.slowest.result.seconds:
            self.slowest = case
        if self.largest is None or case.result.memory > self.largest.result.memory:
            self.largest = case

    def __str__(self) -> str:
        assert self.slowest is not None and self.largest is not None
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        slow = self.slowest.result.seconds
        large = self.largest.result.memory >> 20
        return (
            f"{self.cases} cases, exit codes {codes}; slowest {slow:.1f} s (case {self.slowest.number}), largest "
            f"{large} MB (case {self.largest.number}); {len(self.faulty)} with a fault"
        )


def run(campaign: Campaign, numbers: range) -> Tally:
    """Run the cases with these numbers; print each fault at once."""
    tally = Tally()
    start_time = time.monotonic()
    for number in numbers:
        case = campaign.case(number)
        tally.add(case)
        if case.faults:
            print(case, flush=True)
        if tally.cases % 500 == 0:
            print(f"{tally} ({time.monotonic() - start_time:.0f} s)", flush=True)
    return tally


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int, help="run only this case, and show its messages")
    parser.add_argument("--folder", type=Path, help="the folder of the undamaged files; created if it does not exist")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.count)
    if arguments.case is not None:
        numbers = range(arguments.case, arguments.case + 1)
    memory_disk = "/dev/shm" if Path("/dev/shm").is_dir() else None  # in memory, flushing a file takes no time
    with tempfile.TemporaryDirectory(dir=memory_disk) as folder:
        tally = run(Campaign(arguments.folder or Path(folder), arguments.seed), numbers)
    if arguments.case is not None and tally.slowest is not None:
        print(tally.slowest, tally.slowest.result.err, sep="\n")
    print(tally)
    return bool(tally.faulty)


if __name__ == "__main__":
    sys.exit(main())
