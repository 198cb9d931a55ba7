"""Run `albert` commands in this process, and return what they print on each stream and their exit code."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# The commands that `albert --help` lists, without `bench` and `recipes`, which are groups of commands.
VERBS = (
    "vocab", "data", "pretrain", "finetune", "eval", "search", "ensemble", "params", "predict", "encode", "fill-mask",
    "convert", "export",
    "report", "inspect", "status", "quickstart", "doctor", "reproduce", "probe",
)  # fmt: skip
# Options of `albert pretrain` for a model that trains twenty steps in a second.
TINY = ["-s", "model.hidden_size=32", "-s", "model.embedding_size=16", "-s", "model.intermediate_size=64"]
TINY += ["-s", "schedule.total_steps=20", "-s", "train.batch_size=4", "-s", "train.micro_batch_size=4"]
TINY += ["-s", "train.eval_sequences=32", "-s", "train.precision=fp32", "--device", "cpu"]
# Options of `albert finetune` and `albert eval` for a run of four steps.
QUICK = ["-s", "schedule.total_steps=4", "-s", "schedule.warmup_steps=1", "-s", "train.eval_every=4"]
QUICK += ["-s", "train.batch_size=4", "-s", "train.precision=fp32", "--device", "cpu"]


@dataclass(frozen=True)
class Ended:
    """The result of a command: its exit code, and what it printed on stdout and stderr."""

    code: int
    out: str
    err: str


def albert(*arguments: object, expect: int | None = 0) -> Ended:
    """Run `albert ARGUMENTS` in this process; assert that it exits with the code `expect` (None: any)."""
    from albert_cli.cli.app import command_line

    return run_command(command_line(), arguments, expect)


def run_command(command: Callable[[list[str]], object], arguments: Sequence[object], expect: int | None) -> Ended:
    """Call a command line; assert that it exits with the code `expect` (None: any)."""
    from albert_cli import console

    out = io.StringIO()
    err = io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code or 0
        finally:
            console.configure()  # undo --json, --quiet and --debug for the next test, which may call functions directly
    assert isinstance(code, int)
    assert expect is None or code == expect, f"ended with {code}\n{out.getvalue()}{err.getvalue()}"
    return Ended(code, out.getvalue(), err.getvalue())


def list_options(command: str) -> set[str]:
    """Return the options of a command, such as `--out`."""
    from albert_cli.cli.app import command_line

    parameters = command_line().commands[command].params  # type: ignore[attr-defined]
    return {option for parameter in parameters for option in parameter.opts}


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return every file (its bytes) and every folder (None) below a folder, by relative path, but no lock files."""
    paths = sorted(p for p in folder.rglob("*") if p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in paths}


def pretrained(data: Path, out: Path) -> Path:
    """Pretrain a tiny model on a data directory; return the run's directory."""
    albert("pretrain", "mini/docs", "--data", data, "--out", out, "--quiet", *TINY)
    return out


def write_table(folder: Path, rows: int = 24) -> Path:
    """Write `train.tsv` and `dev.tsv` with the columns `text` and `label`; return their folder.

    Each of the two classes has four words, and a text has these words in random order.
    """
    folder.mkdir(parents=True)
    rng = random.Random(3)
    for split in ("train", "dev"):
        lines = [("good", "bade fi gowi zo") if i % 2 else ("bad", "kraste su luma ne") for i in range(rows)]
        text = "".join(f"{' '.join(rng.sample(words.split(), 4))}\t{label}\n" for label, words in lines)
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + text, encoding="utf-8")
    return folder
