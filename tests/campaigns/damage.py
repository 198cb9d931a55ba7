"""Damaged files: every verb ends with a documented exit code, one line and a hint, or as if nothing were wrong.

    python -m tests.campaigns.damage --seed 1 --count 20000
    python -m tests.campaigns.damage --seed 1 --case 4711      one of them again, and what it said

A case is a function of the seed and its number: a command, one of the files that it reads, what is done to the file
(bits, cuts, lines, JSON values of other types and sizes, depth, a folder or a link in its place), and whether the
manifest beside it is kept, removed, or sealed anew over the damage. What is a fault: an exit code that is not
documented, a traceback, an error that does not name the file or has no hint, half a file left behind, a changed input,
much time or memory, and above all a file that its manifest covers, changed, and accepted.
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
from tests.campaigns.forked import Ended
from tests.campaigns.world import Command

DOCUMENTED = (0, 2, 3, 4, 5, 6, 7, 75, 77)
MEMORY = 2 << 30  # with the half gigabyte that a child shares with this process
MODES = ("kept",) * 6 + ("sealed anew",) * 3 + ("removed",)
HEALED = 0.03  # the share of cases after which the file is restored and the command has to succeed


# ---------------------------------------------------------------- damages


def _deep(opening: str = "[", closing: str = "]") -> str:
    return opening * 100_000 + closing * 100_000


# As they stand in a file: not all are values that Python would write.
VALUES: tuple[str, ...] = (
    "null", "true", "false", "0", "1", "-1", "0.5", "-0.0", "7", "100000000000000000000", "9" * 5000, "1e308", "1e999",
    "NaN", "-Infinity", '""', '"x"', '"12"', json.dumps("x" * 100_000), '"\\ud800"', '"\\u001b[31mred"', '"a\\u0000b"',
    '"../../outside"', '"/etc/passwd"', "[]", "[null]", "[[]]", '["a", 1]', "{}", '{"a": 1}', '{"": {}}', _deep(),
    _deep('{"a":', "}"), "",
)  # fmt: skip
_PLACEHOLDER = "@place@"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON document."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list):
        pairs = list(enumerate(value[:50]))
    for key, inner in pairs:
        yield value, key
        yield from _places(inner)


def _json(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """One value of a document replaced, one key dropped or renamed, or all of it replaced."""
    value = json.loads(data)
    slots = list(_places(value))
    raw = rng.choice(VALUES)
    if not slots or rng.random() < 0.1:
        return f"the document becomes {raw[:30]}", raw.encode()
    # Near the top as often as anywhere.
    container, key = rng.choice(slots if rng.random() < 0.5 else [p for p in slots if p[0] is value])
    chance = rng.random()
    if chance < 0.2:
        del container[key]
        return f"without {key!r}", json.dumps(value).encode()
    if chance < 0.3 and isinstance(container, dict):
        container[f"{key}x"] = container.pop(key)
        return f"{key!r} is called otherwise", json.dumps(value).encode()
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
    at = rng.choice((0, len(data), rng.randrange(len(data))))
    extra = rng.choice((
        rng.randbytes(rng.choice((1, 4, 64))), b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\r", b"\n", b"\t", b'"', b",",
        b"\xc3", "\u2028".encode(), b"\x1b[2J", b"x" * 3_000_000, b"x \n" * 10_000, b"[" * 100_000, b"9" * 5_000,
    ))  # fmt: skip
    return f"{extra[:12]!r} ({len(extra)} bytes) put in at {at}", data[:at] + extra + data[at:]


def _blocks(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    first, last = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    block = data[first:last]
    description, new = rng.choice((("zeroed", bytes(len(block))), ("doubled", block * 2), ("taken out", b""),
                            ("random", rng.randbytes(len(block)))))  # fmt: skip
    return f"bytes {first} to {last} {description}", data[:first] + new + data[last:]


def _lines(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = data.splitlines(keepends=True)
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            lines[one], lines[other] = lines[other], lines[one]
            return f"lines {one + 1} and {other + 1} swapped", b"".join(lines)
        case 1:
            return f"line {one + 1} doubled", b"".join([*lines[: one + 1], *lines[one:]])
        case 2:
            return f"line {one + 1} taken out", b"".join([*lines[:one], *lines[one + 1 :]])
    return "lines end as in DOS", data.replace(b"\n", b"\r\n")


Damage = Callable[[bytes, random.Random], tuple[str, bytes]]
_STRUCTURED: dict[str, Damage] = {
    ".json": _json, ".jsonl": _json_line, ".safetensors": _safetensors, ".toml": _toml,
}  # fmt: skip
_BYTES: tuple[Damage, ...] = (_flip, _flip, _cut, _insert, _insert, _blocks, _lines)
_IN_ITS_PLACE = ("a folder", "a folder with a file", "a dangling link", "a link to itself", "nothing")


def damage(path: Path, rng: random.Random) -> str:
    """Damage a file; what was done."""
    if rng.random() < 0.08:
        replacement = rng.choice(_IN_ITS_PLACE)
        path.unlink()
        if replacement.startswith("a folder"):
            path.mkdir()
            if replacement.endswith("file"):
                (path / "file").write_text("something")
        elif "link" in replacement:
            path.symlink_to("nowhere" if "dangling" in replacement else path.name)
        return f"{replacement} in its place"
    data = path.read_bytes()
    if not data:
        path.write_bytes(rng.randbytes(16))
        return "16 bytes in an empty file"
    structured = _STRUCTURED.get(path.suffix)
    if structured is None and path.parent.name in ("middle", "high"):  # RACE's
        structured = _json
    how = structured if structured is not None and rng.random() < 0.6 else rng.choice(_BYTES)
    description, changed = how(data, rng)
    path.write_bytes(changed)
    return description


# ---------------------------------------------------------------- a case


@dataclass(frozen=True)
class Case:
    """A damaged file, the command that read it, and the result."""

    number: int
    command: Command
    file: str
    description: str
    mode: str
    ended: Ended
    faults: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"case {self.number}: {self.command.name} with {self.file}: {self.description}; manifest {self.mode}"]
        lines += [f"    albert {' '.join(self.command.words)}"]
        lines += [f"    exit {self.ended.code}, {self.ended.seconds:.2f} s: {fault}" for fault in self.faults]
        return "\n".join([*lines, *(f"    | {line[:300]}" for line in self.ended.err.splitlines()[-4:])])


class Campaign:
    """Cases of one seed over one world."""

    def __init__(self, folder: Path, seed: int, commands: Sequence[Command] = ()) -> None:
        self.world, self.folder, self.seed = folder / "world", folder, seed
        self.commands = commands or list(world.commands())
        if not self.world.is_dir():
            world.make(self.world, world.tasks_for(self.commands))
        self.read = {command: self._files_read(command) for command in self.commands}
        self.commands = [command for command in self.commands if self.read[command]]
        for command in {command.name: command for command in self.commands}.values():
            world.lay_out(self.world, command, warm := folder / "warm")
            world.here(command, warm)  # what it imports and makes is there for every child
            shutil.rmtree(warm)

    def case(self, number: int) -> Case:
        """Do the case of this number."""
        rng = random.Random(f"{self.seed} {number}")
        command = rng.choices(self.commands, [c.weight for c in self.commands])[0]
        folder = self.folder / f"case-{number}"
        world.lay_out(self.world, command, folder)
        path = self._choose(folder, command, rng)
        name = path.relative_to(folder).as_posix()
        manifest = _manifest_of(path, folder)
        mode = rng.choice(MODES) if manifest is not None and path.name != store.MANIFEST else "kept"
        if mode == "sealed anew" and path.suffix in SUFFIXES:
            mode = "kept"  # nothing but its manifest protects what a shard holds
        before = _content(path)
        description = damage(path, rng)
        changed = _content(path) != before
        if manifest is not None and mode == "removed":
            (manifest / store.MANIFEST).unlink()
        elif manifest is not None and mode == "sealed anew":
            _seal_anew(manifest)
        inputs = _snapshot(folder, command.out)
        ended = forked.run(command.words, folder, self.folder / f"log-{number}")
        faults = list(_judge(command, folder, path, ended, inputs))
        # It was seen, and done without.
        seen = rf"renamed to|set aside|is not used|making it again|^warning: {re.escape(name)}:"
        refused = bool(re.search(seen, ended.err, re.MULTILINE))
        refused = refused or (path.name == store.MANIFEST and not path.exists())  # then it is no step of a run
        # What `inspect` shows of anything but data is verified by its --verify.
        shown = command.words[0] == "inspect" and "--verify" not in command.words and not os.path.lexists(path)
        if ended.code == 0 and manifest is not None and mode == "kept" and changed and not refused and not shown:
            faults.append("ACCEPTED, though the manifest covers it")
        if ended.code != 0 and not faults and mode != "sealed anew" and rng.random() < HEALED:
            faults += self._heal(command, folder, path, name, manifest)
        shutil.rmtree(folder)
        for end in (".out", ".err"):
            (self.folder / f"log-{number}{end}").unlink()
        return Case(number, command, name, description, mode, ended, tuple(faults))

    def _files_read(self, command: Command) -> list[Path]:
        """The files that a command opens, below its folder; found out once, and kept beside the world."""
        opened: set[Path] = set()
        cached = self.folder / f"reads {' '.join(command.words).replace('/', ' ')}"
        if not cached.is_file():

            def note(call: Call) -> None:
                if call.name == "open":
                    opened.add(call.path.relative_to(folder))

            world.lay_out(self.world, command, folder := self.folder / "reading")
            files = (p for p in folder.rglob("*") if p.is_file() and p.name not in (".lock", "README.md"))
            existing = {p.relative_to(folder) for p in files}
            ended = calls.run(command.words, folder, self.folder / "log", note)
            assert ended.code == 0, f"{command.words} over the undamaged world: {ended.err}"
            shutil.rmtree(folder)
            cached.write_text("\n".join(sorted(map(str, existing & opened))))
        return [Path(line) for line in cached.read_text().splitlines()]

    def _choose(self, folder: Path, command: Command, rng: random.Random) -> Path:
        """A file that the command reads: every kind of file alike, however many there are of it."""
        kinds: dict[str, list[Path]] = {}
        for path in self.read[command]:
            kind = path.name if path.suffix in (".json", ".toml", ".model", ".jsonl") else path.suffix
            kinds.setdefault(f"{kind} of {path.parts[0]}", []).append(path)
        return folder / rng.choice(kinds[rng.choice(sorted(kinds))])

    def _heal(self, command: Command, folder: Path, path: Path, name: str, manifest: Path | None) -> Iterator[str]:
        """The file as it was: the command has to succeed."""
        restored = [name]
        if manifest is not None and manifest.is_dir():
            restored.append((manifest / store.MANIFEST).relative_to(folder).as_posix())
        for one in restored:
            target = folder / one
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            if target.parent.is_dir():
                target.unlink(missing_ok=True)
                shutil.copy2(self.world / one, target)
        again = forked.run(command.words, folder, self.folder / "log-healed")
        if again.code != 0:
            yield f"the file restored, the same command ends with {again.code}: {again.error}"


def _content(path: Path) -> bytes | str | None:
    if path.is_symlink():
        return str(path.readlink())
    if path.name == store.MANIFEST:  # which says what it says in any spelling
        with suppress(OSError, ValueError, RecursionError):
            return repr(json.loads(path.read_bytes()))
    return path.read_bytes() if path.is_file() else None


def _snapshot(folder: Path, but: str) -> dict[str, bytes | str | None]:
    """Return the contents of all files except the output."""
    hints = (".lock", ".verified.json")  # which belong to no artifact
    paths = (p for p in sorted(folder.rglob("*")) if p.name not in hints and p.relative_to(folder).parts[0] != but)
    return {str(p.relative_to(folder)): _content(p) for p in paths}


def _manifest_of(path: Path, top: Path) -> Path | None:
    """The directory above whose manifest covers the file, if there is one."""
    for directory in path.parents:
        if directory == top:
            return None
        if (directory / store.MANIFEST).is_file():
            covered = json.loads((directory / store.MANIFEST).read_text())["files"]
            if path.relative_to(directory).as_posix() in covered or path.name == store.MANIFEST:
                return directory
    return None


def _seal_anew(directory: Path) -> None:
    """A manifest over what is there now, as whoever wrote the damage would have made it."""
    old = json.loads((directory / store.MANIFEST).read_text())
    new = store.seal(directory, old["kind"], old["parents"])
    facts = directory.parents[1] / "data.json"
    if old["kind"] == "shard" and facts.is_file():  # which names the shards by their manifests
        values = json.loads(facts.read_text())
        if directory.name in values["fingerprints"]:
            values["fingerprints"][directory.name] = new.fingerprint()
            store.write_json(facts, values)
            _seal_anew(facts.parent)


def _judge(command: Command, folder: Path, path: Path, ended: Ended, inputs: dict[str, Any]) -> Iterator[str]:
    if ended.code not in DOCUMENTED:
        yield f"exit code {ended.code}"
    is_longer = ended.code == 75 and path.suffix == ".toml"  # without one of its lines a recipe may train for long
    if ended.code == 75 and not is_longer:
        yield "asked to stop, for it took too long"
    if "Traceback" in ended.err or "Exception ignored" in ended.err:
        yield "a traceback"
    lines = [line for line in ended.err.splitlines() if line.strip()]
    if ended.code != 0:
        if ended.out:
            yield f"stdout has {ended.out[:60]!r}"
        if sum(line.startswith("error: ") for line in lines) != 1:
            yield "not one line of error"
        elif not lines[-1].startswith("hint: "):
            yield "no hint"
        elif not is_longer and not _names(" ".join(lines[-2:]), path, folder, command):
            yield "the file is not named"
        if len(ended.error) > 1000:
            yield f"an error of {len(ended.error)} characters"
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\x9b]", ended.err + ended.out):
        yield "control characters are printed"
    if ended.memory > MEMORY:
        yield f"{ended.memory >> 20} MB of memory"
    if left := [str(p.relative_to(folder)) for p in folder.rglob("*.tmp")]:
        yield f"left half-written: {left[0]}"
    after = _snapshot(folder, command.out)
    if changed := [name for name, content in inputs.items() if after.get(name) != content]:
        yield f"an input was changed: {changed[0]}"
    yield from _unsound(folder / command.out, path)


def _names(text: str, path: Path, folder: Path, command: Command) -> bool:
    """Return True if an error names the file, or (for a part of an artifact) its directory, or the recipe."""
    names = [path.name, path.stem, *path.relative_to(folder).parts[:-1]]
    names += [command.out] if command.goes_on else []  # which was made from the file as it was
    names += [word for word in command.words if path.suffix == ".toml" and word.endswith(".toml")]
    return any(name in text for name in names)


def _unsound(out: Path, damaged: Path) -> Iterator[str]:
    """Directories of the output that have a manifest and do not hold what it says, though nothing was done to them."""
    for manifest in sorted(out.rglob(store.MANIFEST)) if out.is_dir() else ():
        if manifest.parent not in damaged.parents and not manifest.parent.name.startswith("damaged-"):
            try:
                store.verify(manifest.parent)
            except Exception as error:
                yield f"the output is not sound: {error}"


# ---------------------------------------------------------------- all of them


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
        self.codes[case.ended.code] += 1
        if case.faults:
            self.faulty.append(case)
        if self.slowest is None or case.ended.seconds > self.slowest.ended.seconds:
            self.slowest = case
        if self.largest is None or case.ended.memory > self.largest.ended.memory:
            self.largest = case

    def __str__(self) -> str:
        assert self.slowest is not None and self.largest is not None
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.codes.items()))
        slow, large = self.slowest.ended.seconds, self.largest.ended.memory >> 20
        return (
            f"{self.cases} cases, exit codes {codes}; slowest {slow:.1f} s (case {self.slowest.number}), largest "
            f"{large} MB (case {self.largest.number}); {len(self.faulty)} with a fault"
        )


def run(campaign: Campaign, numbers: range) -> Tally:
    """Do the cases of these numbers; faults are printed as they are found."""
    tally, began = Tally(), time.monotonic()
    for number in numbers:
        case = campaign.case(number)
        tally.add(case)
        if case.faults:
            print(case, flush=True)
        if tally.cases % 500 == 0:
            print(f"{tally} ({time.monotonic() - began:.0f} s)", flush=True)
    return tally


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--case", type=int, help="this one alone, with all that it prints")
    parser.add_argument("--folder", type=Path, help="where the undamaged files are, or are made and kept")
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.count)
    if arguments.case is not None:
        numbers = range(arguments.case, arguments.case + 1)
    memory_disk = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a flush takes no time in memory
    with tempfile.TemporaryDirectory(dir=memory_disk) as folder:
        tally = run(Campaign(arguments.folder or Path(folder), arguments.seed), numbers)
    if arguments.case is not None and tally.slowest is not None:
        print(tally.slowest, tally.slowest.ended.err, sep="\n")
    print(tally)
    return bool(tally.faulty)


if __name__ == "__main__":
    sys.exit(main())
