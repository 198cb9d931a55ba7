"""Run every command of the README and of the pages in docs/, and compare its output with the page.

A block of commands is fenced as `sh` (only commands), `console` (`$ command`, then its output) or `python`. The comment
`<!-- in tests: prepare NAME… -->` before a block names functions of `PREPARE`, which write files that a reader would
have. `SUBSTITUTES` lists every difference between a page's commands and the commands that the tests run: they differ
only in the amount of work, and every command is also parsed exactly as the page shows it. Instead of a download from
the Hub, a command with `HUB_MODEL` gets the files that `downloaded`, a function of `PREPARE`, has written. No folder
has this name, so it works only for an option that accepts ids of the Hub. The README's commands start in an empty
folder, those of the other pages with the README's results. Blocks after the comment `<!-- in tests: only parsed -->`
would take hours and are not run; their commands, options and recipes must exist.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from albert_cli.data.pairs import PairSettings
from albert_cli.quickstart import plan
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.training.pretrain_recipe import BatchSettings
from albert_cli.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings
from albert_cli.training.task_recipe import TaskDataSettings, TaskModelSettings, TaskScheduleSettings
from tests.helpers.command import VERBS, albert, run_command, write_table
from tests.helpers.languages import sentences
from tests.helpers.tiny_recipe import SMALL_BATCHES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCS = {path.relative_to(ROOT / "docs").as_posix(): path.read_text(encoding="utf-8") for path in PAGES}
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

SHORT = ["-s", "schedule.total_steps=4", "-s", "schedule.warmup_steps=1", "-s", "train.log_every=2"]
SHORT += ["-s", "train.batch_size=4"]
# With the precision "auto", a run measures which precision is faster, and the result may differ the next time.
SMALL = "-s train.batch_size=4 -s train.eval_sequences=8 -s train.precision=fp32"
# Parts of commands that need minutes, a network or many processors, and their replacements.
SUBSTITUTES = {
    "albert quickstart": "albert quickstart --smoke",
    "--runs 1": "--runs 1 -s schedule.total_steps=2 -s schedule.warmup_steps=1 -s train.batch_size=2",
    "--max-time 2m": "--max-time 1s -s train.batch_size=4 -s train.micro_batch_size=4 -s train.eval_sequences=8",
    "--sequences 64": "--sequences 8",
    "--length 128 --length 256": "--length 128",
    "-s schedule.total_steps=20": "-s schedule.total_steps=4",
    "-s schedule.total_steps=40": "-s schedule.total_steps=4 -s train.batch_size=4 -s train.eval_sequences=8",
    "-s schedule.total_steps=200": "-s schedule.total_steps=2 -s train.eval_sequences=4",
    "-s schedule.total_steps=50": "-s schedule.total_steps=4 -s train.batch_size=4 -s train.eval_sequences=8",
    "-s schedule.total_steps=60": "-s schedule.total_steps=42 -s train.batch_size=5 -s train.eval_sequences=8",
    "--work glue --rounds 3": "--work glue --rounds 1",
    "--against transformers --rounds 3": "--against transformers --rounds 1",
    "-s train.precision=fp32 -s train.threads=1": "-s train.precision=fp32 -s train.threads=1 --rounds 1",
    "-s schedule.total_steps=12000": f"-s schedule.total_steps=12000 {SMALL}",
    "--out taught": f"--out taught {SMALL}",
    "--nproc 2": "--nproc 1",
    "torchrun --nproc-per-node 2 -m albert_cli": "albert",
    "--runs 3": "--runs 3 -s schedule.total_steps=4 -s schedule.warmup_steps=1 -s train.batch_size=4",
    "--runs 5": "--runs 1 -s schedule.total_steps=2 -s schedule.warmup_steps=1 -s train.batch_size=2",
    "--out packages": "--out packages -s schedule.total_steps=4 -s schedule.warmup_steps=1 -s train.batch_size=4",
    "--out speeds": "--out speeds --device cpu -s model.hidden_size=64 -s model.num_attention_heads=4"
    " -s model.num_hidden_layers=2 -s model.intermediate_size=64 -s model.vocab_size=200",
    "--out spans": "--out spans -s schedule.total_steps=2 -s schedule.warmup_steps=1 -s train.batch_size=2",
    "--out paraphrases": "--out paraphrases -s schedule.total_steps=2 -s schedule.warmup_steps=1",
}
# All that a substitute may change: options and settings that determine how long a command takes.
WORK_OPTIONS = {"max_time", "runs", "rounds", "smoke", "device", "nproc", "sequences", "length"}
WORK_SETTINGS = {"schedule.total_steps", "schedule.warmup_steps", "train.batch_size", "train.micro_batch_size"}
WORK_SETTINGS |= {"train.eval_sequences", "train.precision", "model.hidden_size", "model.num_attention_heads"}
WORK_SETTINGS |= {"model.num_hidden_layers", "model.intermediate_size", "model.vocab_size"}
HUB_MODEL = "albert/albert-base-v2"
OTHER_PROGRAMS = ("pip", "pytest", "export", "wandb", "for", "echo", "cat", "test", "exit", "done")
INSTALLS = ("pip ", "pytest")  # beginnings of commands that .ci/run runs on a fresh machine, not these tests


# ---------------------------------------------------------------- reading a page


@dataclass(frozen=True)
class Block:
    """A fenced block: its language and lines, the names of the functions in its comment, and whether it is run."""

    language: str
    lines: tuple[str, ...]
    prepare: tuple[str, ...]
    is_run: bool = True

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each command with the lines of output that the page shows."""
        if self.language == "python":
            yield "\n".join(self.lines), []
        elif self.language == "sh":
            joined = "\n".join(self.lines).replace("\\\n", " ")
            yield from ((line, []) for line in joined.split("\n") if line.strip() and not line.startswith("#"))
        else:
            starts = [i for i, line in enumerate(self.lines) if line.startswith("$ ")]
            assert starts[:1] == [0], "a console block begins with a command"
            for start, stop in zip(starts, [*starts[1:], len(self.lines)], strict=True):
                yield self.lines[start].removeprefix("$ "), [line for line in self.lines[start + 1 : stop] if line]


def blocks(text: str) -> list[Block]:
    """Return the blocks of commands in a Markdown text."""
    pattern = r"(?:<!-- in tests: (only parsed|prepare [\w ]+) -->\s*\n)?^```(sh|console|python)\n(.*?)^```"
    fenced_blocks = []
    for note, language, lines in re.findall(pattern, text, re.MULTILINE | re.DOTALL):
        prepare = tuple(note.split()[1:]) if note.startswith("prepare") else ()
        fenced_blocks.append(Block(language, tuple(lines.rstrip("\n").split("\n")), prepare, note != "only parsed"))
    return fenced_blocks


def all_commands(text: str) -> list[str]:
    return [command for block in blocks(text) for command, _ in block.commands()]


def shell_commands(text: str) -> list[str]:
    return [command for block in blocks(text) if block.language != "python" for command, _ in block.commands()]


# ---------------------------------------------------------------- files that a reader would have


def glue(folder: Path) -> None:
    """Write MRPC, CoLA and RTE in GLUE's published layout."""
    for name, header, row in (
        ("MRPC", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t1\t2\tA cat sat.\tA cat was sitting {i}."),
        ("CoLA", "s\t1\t\tA cat sat.", "s\t{label}\t\tA cat was sitting {i}."),  # no header
        ("RTE", "index\tsentence1\tsentence2\tlabel", "{i}\tIt rained all day.\tIt was wet.\t{entails}"),
    ):
        (folder / "glue" / name).mkdir(parents=True, exist_ok=True)
        rows = [row.format(i=i, label=i % 2, entails=["entailment", "not_entailment"][i % 2]) for i in range(8)]
        for split in ("train", "dev"):
            (folder / "glue" / name / f"{split}.tsv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")


def questions(folder: Path) -> None:
    """Write questions in SQuAD's layout."""
    (folder / "questions").mkdir()
    for split, count in (("train", 30), ("dev", 6)):
        articles = []
        for i in range(count):
            qa = {
                "id": f"{split}{i}",
                "question": "What was late?",
                "answers": [{"text": f"boat {i}", "answer_start": 4}],
            }
            articles.append({"title": str(i), "paragraphs": [{"context": f"The boat {i} was late.", "qas": [qa]}]})
        text = json.dumps({"version": "own", "data": articles})
        (folder / "questions" / f"{split}.json").write_text(text, encoding="utf-8")


def race(folder: Path) -> None:
    """Write RACE in its published layout, with one passage for each level and split."""
    for split in ("train", "dev", "test"):
        for level in ("middle", "high"):
            path = folder / "RACE" / split / level / "1.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            record = {"article": "It rained.", "questions": ["It _ ."], "options": [["rained", "was", "is", "had"]]}
            path.write_text(json.dumps(record | {"answers": ["A"], "id": f"{level}1.txt"}), encoding="utf-8")


def downloaded(folder: Path) -> None:
    """Copy a checkpoint without its manifest and optimizer state, as if another program had written it."""
    step = sorted((folder / "run").glob("step-*"))[-1]
    shutil.copytree(step, folder / "downloaded", ignore=shutil.ignore_patterns("manifest.json", "*.toml", "optim*"))


def deutsch(folder: Path) -> None:
    """Write a German text."""
    (folder / "deutsch.txt").write_text("\n".join(sentences("german")), encoding="utf-8")


def texts(folder: Path) -> None:
    """Write a text file and a file of JSON lines."""
    documents = [
        f"The boat number {i} was late. It rained on day {i % 7}, and {i} gulls sat there." for i in range(300)
    ]
    (folder / "notes.txt").write_text("\n\n".join(documents[:100]), encoding="utf-8")
    lines = [json.dumps({"title": str(i), "text": document}) + "\n" for i, document in enumerate(documents)]
    (folder / "wiki.jsonl").write_text("".join(lines), encoding="utf-8")


def entities(folder: Path) -> None:
    """Write tagged words, and texts to tag."""
    (folder / "entities").mkdir()
    for split in ("train", "dev"):
        text = "".join("Ada B-PER\nLovelace I-PER\nmet O\nBo B-PER\nin O\nParis B-LOC\n\n" for _ in range(20))
        (folder / "entities" / f"{split}.conll").write_text(text)
    (folder / "letters.txt").write_text("Ada met Bo.\nThe file is open.\n")


PREPARE: dict[str, Callable[[Path], None]] = {
    "glue": glue,
    "questions": questions,
    "race": race,
    "entities": entities,
    "downloaded": downloaded,
    "deutsch": deutsch,
    "texts": texts,
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Environment variables with `albert` and `python` of this interpreter and this checkout on the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, call in (("albert", "-m albert_cli"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {call} "$@"\n')
        (programs / name).chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}


# ---------------------------------------------------------------- running commands


def substituted(command: str) -> str:
    for old, new in SUBSTITUTES.items():
        command = re.sub(rf"{re.escape(old)}(?![\w-])", new, command)
    return command


def shape(text: str) -> str:
    """Return a line without everything that differs from run to run: numbers, padding, rules, and "above" or "below".

    The column of collapsed runs is removed too, because models that train for a few steps may collapse. Characters
    without a token are removed, because each version of Python has another documentation.
    """
    text = text.replace(" above the ", " below the ")
    text = re.sub(r"\bcollapsed  +|\d+ of \d+  +| \(without a token: .*\)", "", text)
    text = re.sub(r"[+-]?\d[\d,.]*", "#", re.sub(r"(─+ *)+", "─", text))
    return " ".join(re.sub(r"# (s|min # s|h # min)\b", "TIME", text).split())


def lines_not_printed(command: str, shown: list[str], printed: str) -> list[str]:
    """Return the lines that a page shows and the command did not print.

    Numbers are compared only for `albert params` of the paper's models, and ignored for other commands.
    """
    exact = command.startswith("albert params albert")
    lines = {line.rstrip() if exact else shape(line) for line in printed.splitlines()}
    return [line for line in shown if line != "…" and (line if exact else shape(line)) not in lines]


def walk(text: str, run: Callable[[str], str]) -> None:
    """Run the commands of a page in the current folder, and assert that they print what the page shows."""
    differences = []
    for block in blocks(text):
        if not block.is_run:
            continue
        for name in block.prepare:
            PREPARE[name](Path())
        for command, wanted in block.commands():
            parts = [part.strip() for part in command.split("&&")] if block.language == "sh" else [command]
            for part in parts:
                if part.startswith(INSTALLS):
                    continue  # see test_ci_installs_as_the_readme_says
                printed = (in_python if block.language == "python" else run)(part)
                if missing := lines_not_printed(part, wanted, printed):
                    differences.append("\n".join([f"$ {part}", "not printed:", *missing, "printed:", printed]))
    assert not differences, "\n\n".join(differences)


def in_python(program: str) -> str:
    """Run a Python program in this process; return its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(program, {"__name__": "__main__"})
    return printed.getvalue()


def in_a_shell(command: str, environment: dict[str, str]) -> str:
    """Run a command in bash; return its output on both streams."""
    done = subprocess.run(
        ["bash", "-c", substituted(command)],
        env=environment,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="session")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with smaller versions of the README's results, in which the other pages start."""
    folder = tmp_path_factory.mktemp("walked")
    with contextlib.chdir(folder):
        albert("vocab", "docs:stdlib", "--size", 2000, "--sample-size", 4000, "--out", "vocabulary")
        albert("data", "docs:stdlib", "--vocab", "vocabulary", "--out", "data", "--holdout", 0.05)
        albert("pretrain", "mini/wiki", "--data", "data", "--out", "run", *SHORT, *SMALL.split())
        table = write_table(folder / "quickstart" / "task")
        albert("finetune", "mini/table", "--checkpoint", "run", "--data", table, "--out", "packages", *SHORT)
        lines = [json.dumps({"text": f"Open file number {i} and read a line."}) + "\n" for i in range(40)]
        (folder / "quickstart" / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """A function that runs a command in the folder `tmp_path/work`.

    To save time, a command of `albert` or of a benchmark runs in this process, unless it needs a shell.
    """

    def call(command: str) -> str:
        if loop := re.fullmatch(r"for (\w+) in ([\w ]+); do (.*) \|\| exit; done", command):
            variable, values, body = loop.groups()
            return "".join(call(body.replace(f"${variable}", value)) for value in values.split())
        command, _, code = substituted(command).partition(" || test $? = ")
        before_pipe, _, last_program = command.rpartition(" | ")
        name, *arguments = shlex.split(last_program.removeprefix("python -m "))
        is_known = re.fullmatch(r"albert|benchmarks\.\w+", name) is not None
        if not is_known or re.search(r"[|<>;]", before_pipe + re.sub('".*?"', "", last_program)):
            return in_a_shell(command, environment)
        (tmp_path / "stdin").write_text(in_a_shell(before_pipe, environment) if before_pipe else "")
        with (tmp_path / "stdin").open() as stdin, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", stdin)
            if HUB_MODEL in command:
                downloaded = Path("downloaded").resolve(strict=True)
                patch.setattr("albert_cli.hub_access.download_hub_files", lambda name, patterns: downloaded)
            ended = run_command(find_command_line(name), arguments, expect=int(code or 0))
        return ended.out + ended.err

    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    # With oneDNN, a benchmark measures which library is faster, and its headline names oneDNN only if that is faster.
    monkeypatch.setattr("albert_cli.training.device.measure_onednn_speedup", lambda hidden, intermediate, tokens: 1.0)
    monkeypatch.setattr("albert_cli.training.device.measure_bf16_speedup", lambda: 1.0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("albert_cli.data.build.available_cores", lambda: 1)
    monkeypatch.setattr("albert_cli.machine.available_cores", lambda: 1)  # of `albert quickstart`, for `eval --nproc`
    monkeypatch.setattr("albert_cli.bench.harness.WARM_UP", 0)
    monkeypatch.setattr("benchmarks.data.measure_data.__defaults__", (0.01,))  # seconds for each figure
    monkeypatch.setattr("albert_cli.bench.step.GLUE_LENGTHS", {"cola": [6, 22], "rte": [23, 128]})
    assert plan.SMOKE.bundled is not None
    bundled = dataclasses.replace(plan.SMOKE.bundled, train_sentences=125, test_sentences=200)
    recipe = tmp_path / "small.toml"
    recipe.write_text(f'extends = "mini/docs"\n{SMALL_BATCHES}')
    small = dataclasses.replace(
        plan.SMOKE,
        recipe=str(recipe),
        max_time="1s",
        runs=1,
        label_counts=(125,),
        sample_size=3000,
        bundled=bundled,
        overrides=("schedule.epochs=1",),
    )
    monkeypatch.setattr(plan, "SMOKE", small)
    return call


def test_readme_commands_print_what_the_page_shows(run: Callable[[str], str]) -> None:
    walk(README, run)


@pytest.mark.parametrize("page", DOCS)
def test_every_command_of_a_page_works_and_prints_what_is_shown(
    page: str, run: Callable[[str], str], walked: Path
) -> None:
    shutil.copytree(walked, Path.cwd(), dirs_exist_ok=True)
    walk(DOCS[page], run)


def iter_calls(command: str) -> Iterator[list[str]]:
    """Yield the words of each program that a line of shell calls, without redirections and assigned variables."""
    words: list[str] = []
    lexer = shlex.shlex(re.sub(r">\s*\S+", "", command), posix=True, punctuation_chars="|&;")
    lexer.whitespace_split = True
    for word in [*lexer, ";"]:
        if not set(word) <= set("|&;"):
            words.append(re.sub(r"\$\w+", "0", word))
            continue
        while words and (words[0] == "do" or re.match(r"[A-Z_]+=", words[0])):
            del words[0]
        if words:
            yield words
        words = []


@functools.cache
def find_command_line(program: str) -> Any:
    """Return the command line of `albert` or of a benchmark, which takes some hundredths of a second to build."""
    from typer.main import get_command

    from albert_cli.cli.app import command_line

    return get_command(importlib.import_module(program).app) if program.startswith("benchmarks.") else command_line()


def parse_call(words: list[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the name and the parameters of a call of `albert` or of a benchmark; None for other programs."""
    from albert_cli import console

    program, *arguments = words
    if program == "torchrun":
        arguments = arguments[arguments.index("albert_cli") + 1 :]
    elif program == "python":
        _, program, *arguments = arguments
    elif program != "albert":
        return None
    name = program
    command = find_command_line(program)
    while hasattr(command, "commands") and arguments:
        name = arguments.pop(0)
        command = command.commands[name]
    try:
        return name, command.make_context(name, arguments).params
    finally:
        console.configure()  # undo --json and --quiet


@pytest.mark.parametrize("page", ["README.md", *DOCS])
def test_commands_are_accepted_exactly_as_shown(page: str) -> None:
    """Parse every command without substitutes, also those that take hours.

    Its program, options, recipes, parts and tests must exist.
    """
    from albert_cli.config import find_recipe
    from benchmarks import gpu

    for command in shell_commands(DOCS.get(page, README)):
        for words in iter_calls(command):
            name, parameters = parse_call(words) or ("", {})
            assert name or words[0] in OTHER_PROGRAMS, command
            if words[0] == "pytest":
                assert all((ROOT / word).exists() for word in words if word.startswith("tests"))
            if name == "benchmarks.gpu":
                assert set(parameters["part"] or ()) <= set(gpu.PARTS)
            if name == "reproduce" and parameters["experiment"]:
                find_recipe(f"experiments/{parameters['experiment']}")
                assert parameters["out"] or parameters["dry_run"], f"{command}: lacks --out"
            for word in words if name else ():
                if re.fullmatch(r"(mini|pretrain|finetune|verify)/[\w-]+", word):
                    find_recipe(word)


def test_models_from_the_hub_have_no_mini_recipe() -> None:
    """Assert that no run started from a released model has a recipe in `mini/`.

    These recipes are for models pretrained for minutes, and a run started from a released model is not such a model.
    """
    commands = []
    for page in (README, *DOCS.values()):
        released = set[str]()
        for words in (words for command in shell_commands(page) for words in iter_calls(command)):
            _, parameters = parse_call(words) or ("", {})
            overrides = parameters.get("overrides") or ()
            checkpoints = [text.removeprefix("warm_start.checkpoint=") for text in overrides]
            checkpoints.append(str(parameters.get("checkpoint")))
            if any(checkpoint.startswith("albert/") or checkpoint in released for checkpoint in checkpoints):
                released.add(str(parameters.get("out")))
                commands.append(words)
    assert {words[1] for words in commands} >= {"finetune", "pretrain"}
    assert [words for words in commands if any(word.startswith("mini/") for word in words)] == []


def test_substitutes_change_only_the_amount_of_work() -> None:
    """The verb, the inputs, the outputs and all other options are those shown."""
    differing_settings = set[str]()
    for command in (command for page in (README, *DOCS.values()) for command in shell_commands(page)):
        if command == substituted(command):
            continue
        for shown, run in zip(iter_calls(command), iter_calls(substituted(command)), strict=True):
            name, parameters = parse_call(shown) or ("", {})
            run_name, run_parameters = parse_call(run) or ("", {})
            assert name == run_name
            different = {key for key in parameters if parameters[key] != run_parameters[key]}
            assert different <= {*WORK_OPTIONS, "overrides"}, command
            settings, run_settings = (
                dict(override.split("=", 1) for override in p.get("overrides") or ())
                for p in (parameters, run_parameters)
            )
            names = settings.keys() | run_settings.keys()
            differing_settings |= {key for key in names if settings.get(key) != run_settings.get(key)}
    assert differing_settings <= WORK_SETTINGS


def test_commands_not_run_write_no_result_of_the_readme() -> None:
    """Assert that no command that is only parsed has the same `--out` as a command of the README.

    A reader who has run the README's commands could not run such a command: it would be refused, because the directory
    has another command's results.
    """

    def outputs(block: Block) -> set[str]:
        calls = [parse_call(words) or ("", {}) for command, _ in block.commands() for words in iter_calls(command)]
        # Experiments share a folder.
        return {str(parameters.get("out")) for name, parameters in calls if name != "reproduce"} - {"None"}

    made = {out for block in blocks(README) for out in outputs(block)}
    assert made >= {"run", "data", "packages"}
    pages = [text for text in DOCS.values() if "Run the commands of the [README]" in text]
    used_again = {out for page in pages for block in blocks(page) if not block.is_run for out in outputs(block)} & made
    assert used_again == set()


def test_ci_installs_as_the_readme_says() -> None:
    parts = [part.strip() for command in all_commands(README) for part in command.split("&&")]
    installs = [part for part in parts if part.startswith(INSTALLS)]
    assert {"pip install .", "pip install '.[test]'", "pytest"} <= set(installs)
    run_by_ci = {line.strip() for line in CI.splitlines()}
    for part in installs:
        assert part in run_by_ci or any(line.startswith(f"{part} ") for line in run_by_ci), f".ci/run lacks: {part}"


def test_every_substitute_is_needed() -> None:
    text = "\n".join(command for page in (README, *DOCS.values()) for command in all_commands(page))
    assert [old for old in SUBSTITUTES if old not in text] == []


def test_the_pages_show_every_verb() -> None:
    commands = [command for page in (README, *DOCS.values()) for command in all_commands(page)]
    assert [verb for verb in (*VERBS, "recipes") if not any(f"albert {verb}" in c for c in commands)] == []


def test_the_pages_name_every_option() -> None:
    text = "\n".join((README, *DOCS.values()))

    def list_missing(name: str, command: Any) -> Iterator[str]:
        for subname, subcommand in getattr(command, "commands", {}).items():
            yield from list_missing(f"{name} {subname}", subcommand)
        for parameter in command.params if not hasattr(command, "commands") else ():
            names = [*parameter.opts, *parameter.secondary_opts]
            is_option = parameter.param_type_name == "option"
            if is_option and not any(re.search(rf"(?<![\w-]){option}(?![\w-])", text) for option in names):
                yield f"{name} {parameter.opts[0]}"

    assert list(list_missing("albert", find_command_line("albert"))) == []


def format_default(value: object) -> str:
    """Return a default as the tables of settings show it, without quotation marks."""
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return json.dumps(value).strip('"')


@pytest.mark.parametrize(
    ("section", "settings"),
    [
        ("optimizer", OptimizerSettings),
        ("schedule", ScheduleSettings),
        ("train", TrainSettings),
        ("span", SpanSettings),
        ("batch", BatchSettings),
        ("data", PairSettings),
    ],
)
def test_settings_table_has_every_key_and_its_default(section: str, settings: Any) -> None:
    text = "\n".join(DOCS.values())
    (rows,) = re.findall(rf"^\| `\[{section}\]`[^|\n]* \| default \| meaning \|\n(.*?)\n\n", text, re.M | re.S)
    shown: dict[str, str] = {}
    for row in rows.split("\n")[1:]:
        keys, defaults, _ = row.replace("`", "").strip("| ").split(" | ", 2)
        shown |= dict(zip(keys.split(", "), defaults.split(", "), strict=True))
    if settings is ScheduleSettings:
        assert shown.pop("epochs"), "a key of fine-tuning recipes only"
    defaults = {field.name: format_default(field.default) for field in dataclasses.fields(settings)}
    assert {key: default.partition(";")[0] for key, default in shown.items()} == defaults


@pytest.mark.parametrize("settings", [TaskDataSettings, TaskScheduleSettings, TaskModelSettings, TableSettings])
def test_the_pages_name_every_key_of_a_task_recipe(settings: type) -> None:
    text = "\n".join(DOCS.values())
    keys = [field.name for field in dataclasses.fields(settings)]
    assert [key for key in keys if not re.search(rf"[`.\[]{key}\b", text)] == []


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 250


def test_inline_commands_of_the_readme_are_in_a_block_too() -> None:
    """Assert that each whole command in running text, such as `albert vocab x --out y`, is in a block, which is run."""
    prose = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
    inline = [c for c in re.findall(r"`(albert [^`]+)`", prose) if len(c.split()) > 2]
    run = {version for command in all_commands(README) for version in (command, substituted(command))}
    assert [command for command in inline if command not in run] == []


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{name}" for name in DOCS)])
def test_links_and_pictures_exist(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []
    assert [
        target for target in targets if target.endswith(".png") and (path.parent / target).stat().st_size > 300_000
    ] == []


def test_the_map_of_the_code_names_what_exists() -> None:
    page = DOCS["development.md"].partition("## Tests")[0]
    modules = [path for folder in ("albert_cli", "tests") for path in (ROOT / folder).rglob("*.py")]
    words = {word for path in modules for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    missing = []
    for name in re.findall(r"`([\w./]+)`", page):
        if "/" in name or name.endswith(".py"):
            exists = any((ROOT / folder / name).exists() for folder in (".", "albert_cli"))
        else:
            exists = words.issuperset(name.split("."))
        if not exists:
            missing.append(name)
    assert missing == []


def test_tests_that_a_page_names_exist() -> None:
    modules = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    tests = {name for module in modules for name in re.findall(r"^ *def (test_\w+)", module, re.MULTILINE)}
    pages = {"README.md": README, **DOCS}
    missing = [
        f"{page}: {name}"
        for page, text in pages.items()
        for name in re.findall(r"`(?:[\w./]+::)?(test_\w+)`", text)
        if name not in tests
    ]
    assert missing == []


def test_reproduce_help_and_pages_agree_on_the_minutes() -> None:
    help_text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", albert("reproduce", "--help").out).split())
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in ("docs/experiments.md", "docs/lab/claims.md")]
    assert all("up to 45 minutes" in text for text in [help_text, *texts])
