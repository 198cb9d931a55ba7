"""The command line in this process: what it prints on each stream and the code it ends with."""

from __future__ import annotations

import contextlib
import functools
import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# As `albert --help` lists them.
VERBS = (
    "vocab", "data", "pretrain", "finetune", "eval", "search", "ensemble", "params", "predict", "encode", "fill-mask",
    "convert", "export",
    "report", "inspect", "status", "quickstart", "doctor", "reproduce", "probe",
)  # fmt: skip
# A model that trains twenty steps in a second.
TINY = ["-s", "model.hidden_size=32", "-s", "model.embedding_size=16", "-s", "model.intermediate_size=64"]
TINY += ["-s", "schedule.total_steps=20", "-s", "train.batch_size=4", "-s", "train.micro_batch_size=4"]
TINY += ["-s", "train.eval_sequences=32", "-s", "train.precision=fp32", "--device", "cpu"]
QUICK = ["-s", "schedule.total_steps=4", "-s", "schedule.warmup_steps=1", "-s", "train.eval_every=4"]
QUICK += ["-s", "train.batch_size=4", "-s", "train.precision=fp32", "--device", "cpu"]


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    out: str
    err: str


@functools.cache
def _command_line() -> Callable[[list[str]], object]:
    """The command line, built once: a thousand calls would each take some hundredths of a second for it."""
    from typer.main import get_command

    from albert_cli.cli import app

    return get_command(app)


def albert(*arguments: object, expect: int | None = 0) -> Ended:
    """Run `albert ARGUMENTS` here; it must end with the code `expect` (None: any)."""
    from albert_cli import console

    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            _command_line()([str(a) for a in arguments])
        except SystemExit as end:
            code = end.code or 0
        finally:
            console.configure()  # the next test's calls have no command line that would
    assert isinstance(code, int)
    assert expect is None or code == expect, f"ended with {code}\n{out.getvalue()}{err.getvalue()}"
    return Ended(code, out.getvalue(), err.getvalue())


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every file (its bytes) and folder below, locks apart: they are empty and belong to no artifact."""
    paths = sorted(p for p in folder.rglob("*") if p.name != ".lock")
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in paths}


def pretrained(data: Path, out: Path) -> Path:
    """A tiny run over a data directory."""
    albert("pretrain", "mini/docs", "--data", data, "--out", out, "--quiet", *TINY)
    return out


def write_table(folder: Path, rows: int = 24) -> Path:
    """`train.tsv` and `dev.tsv` with the columns `text` and `label`: two classes of two words each."""
    folder.mkdir(parents=True)
    rng = random.Random(3)
    for split in ("train", "dev"):
        lines = [("good", "bade fi gowi zo") if i % 2 else ("bad", "kraste su luma ne") for i in range(rows)]
        text = "".join(f"{' '.join(rng.sample(words.split(), 4))}\t{label}\n" for label, words in lines)
        (folder / f"{split}.tsv").write_text("text\tlabel\n" + text, encoding="utf-8")
    return folder
