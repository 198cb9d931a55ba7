"""Every verb from outside: help, streams, `--json`, `--quiet`, and what the small verbs answer."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from albert_cli import __version__, config, errors
from albert_cli.cli import EPILOGUE, app
from albert_cli.cli.app import STAGES, report_error
from tests.helpers.command import QUICK, TINY, VERBS, albert, pretrained, write_table
from tests.helpers.processes import start

RECIPE_VERBS = ("list", "show", "copy", "validate")
ALL = [(verb,) for verb in VERBS] + [("recipes", verb) for verb in RECIPE_VERBS]


# ---------------------------------------------------------------- help and version


def test_the_verbs_are_these() -> None:
    registered = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert registered == set(VERBS)


@pytest.mark.parametrize("verb", ALL, ids=" ".join)
def test_help_of_every_verb(verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    output_text = albert(*verb, "--help")
    assert f"Example: albert {' '.join(verb)}" in output_text.out
    assert all(option in output_text.out for option in ("--json", "--quiet", "--debug"))
    assert output_text.err == ""


def test_help_groups_commands_by_stage() -> None:
    lines = albert("--help").out.splitlines()
    headings = [line.strip("╭─╮ ") for line in lines if line.startswith("╭─")]
    assert headings == ["Options", *STAGES]
    commands = [line.split()[1] for line in lines if re.match(r"│ [a-z]", line)]
    assert commands[:5] == ["quickstart", "doctor", "vocab", "data", "pretrain"]
    assert set(commands) == {*VERBS, "bench", "recipes"}


@pytest.mark.parametrize(
    ("line", "offered"),
    [("albert pre", {"pretrain", "predict"}), ("albert pretrain --sa", {"--save-every"}), ("albert bench s", {"step"})],
)
def test_bash_completion_offers_what_fits(line: str, offered: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ALBERT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        app(prog_name="albert")
    assert set(printed.getvalue().split()) == offered


def test_help_names_every_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    output_text = albert("--help")
    assert " ".join(EPILOGUE.split()) in " ".join(output_text.out.split())
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text(encoding="utf-8")
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    for code in {0, 130} | codes:
        assert re.search(rf"\b{code} [a-z]", EPILOGUE) and re.search(rf"^\| {code}[ ,]", page, re.MULTILINE)


def test_version() -> None:
    assert albert("--version").out == f"albert {__version__}\n"


def test_of_a_name_that_is_no_utf8_the_name_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"before": "b" * 500, "path": "texts/caf\udce9.txt", "after": "a" * 500}, ensure_ascii=False)
    with pytest.raises(UnicodeEncodeError) as raised:
        text.encode()
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    assert report_error(raised.value) == 3
    assert printed.getvalue().startswith("error: texts/caf") and "before" not in printed.getvalue()


def test_what_onednn_cannot_make_is_want_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(RuntimeError("could not create a primitive")) == 1
    output_text = capsys.readouterr().err
    assert output_text.startswith("error: out of memory: could not create a primitive\n") and "bug" not in output_text


def test_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "albert_cli", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"albert {__version__}\n"


def test_a_stream_that_is_closed_leaves_the_other_alone() -> None:
    command = f"{shlex.quote(sys.executable)} -m albert_cli inspect nowhere 2>&-"
    done = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")


@pytest.mark.parametrize(
    ("arguments", "output_text"),
    [
        (("pretrian",), "pretrain"),
        (("recipes", "lst"), "list"),
        (("vocab",), "SOURCE"),
        (("params", "--josn"), "--json"),
        (("data", "x.txt", "--vocab", "v"), "--out"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_is_missing(arguments: tuple[str, ...], output_text: str) -> None:
    ended = albert(*arguments, expect=2)
    assert output_text in ended.err
    assert ended.out == ""


# ---------------------------------------------------------------- one object, two streams


@dataclass(frozen=True)
class Road:
    """One of everything, tiny."""

    text: Path
    vocabulary: Path
    data: Path
    run: Path
    table: Path
    task: Path


@pytest.fixture(scope="module")
def road(
    tmp_path_factory: pytest.TempPathFactory, documents_file: Path, tiny_vocabulary: Path, tiny_data: Path
) -> Road:
    folder = tmp_path_factory.mktemp("road")
    run, table = pretrained(tiny_data, folder / "run"), write_table(folder / "table")
    albert("finetune", "table", "--checkpoint", run, "--data", table, "--out", folder / "task", *QUICK)
    return Road(documents_file, tiny_vocabulary, tiny_data, run, table, folder / "task")


def commands(road: Road, new: Path) -> dict[str, list[object]]:
    """A quick call of every verb that writes to `new`, or nowhere."""
    tuned = ["--checkpoint", road.run, "--data", road.table, *QUICK]
    scored = ["--checkpoint", road.task, "--data", road.table]
    return {
        "vocab": ["vocab", road.text, "--size", 200, "--out", new / "v"],
        "data": ["data", road.text, "--vocab", road.vocabulary, "--out", new / "d", "--workers", 1],
        "pretrain": ["pretrain", "mini/docs", "--data", road.data, "--out", new / "r", *TINY],
        "pretrain --dry-run": ["pretrain", "mini/docs", "--data", road.data, "--out", new / "r", "--dry-run", *TINY],
        "pretrain --show-config": ["pretrain", "mini/docs", "--data", road.data, "--out", new / "r", "--show-config"],
        "finetune": ["finetune", "table", "--out", new / "f", *tuned],
        "eval": ["eval", "table", "--runs", 2, "--out", new / "e", *tuned],
        "eval of a task checkpoint": ["eval", "table", "--out", new / "s", *scored],
        "predict --out": ["predict", road.task, "--input", road.text, "--out", new / "p.jsonl"],
        "encode --out": ["encode", road.run, "--input", road.text, "--out", new / "v.safetensors"],
        "fill-mask": ["fill-mask", road.run, "bade [MASK]"],
        "params": ["params"],
        "report": ["report", road.run, road.task, "--out", new / "report.html"],
        "inspect a vocabulary": ["inspect", road.vocabulary],
        "inspect data": ["inspect", road.data, "--examples", 2, "--verify"],
        "inspect a run": ["inspect", road.run],
        "inspect a task": ["inspect", road.task, "--verify"],
        "recipes list": ["recipes", "list"],
        "recipes show": ["recipes", "show", "mini/docs"],
        "recipes copy": ["recipes", "copy", "mini/docs", "--out", new / "mine.toml"],
        "recipes validate": ["recipes", "validate", "pretrain/albert-base"],
        "doctor": ["doctor"],
    }  # fmt: skip


NAMES = list(commands(Road(*[Path()] * 6), Path()))


@pytest.mark.parametrize("name", NAMES)
def test_json_is_one_object_and_quiet_is_silent(name: str, road: Road, tmp_path: Path) -> None:
    output_text = albert(*commands(road, tmp_path)[name], "--json", "--quiet")
    # Warnings are never silent, and a model of so few steps may well give one answer for all.
    assert all(" collapsed: " in line for line in output_text.err.splitlines()), output_text.err
    assert output_text.out.endswith("}\n")
    assert output_text.out.count("\n") == 1
    assert isinstance(json.loads(output_text.out), dict)


# ---------------------------------------------------------------- files


def writing_commands(road: Road, new: Path) -> dict[str, list[object]]:
    """Return a quick call of every verb that writes to `new`."""
    tuned = ["--checkpoint", road.run, "--data", road.table]
    calls = {name: call for name, call in commands(road, new).items() if "--out" in call}
    for name in ("pretrain --dry-run", "pretrain --show-config"):
        del calls[name]
    return calls | {
        "data --task": ["data", road.text, "--vocab", road.vocabulary, "--out", new / "parts", "--task", "0/2"],
        "convert": ["convert", road.run, "--out", new / "c"],
        "export": ["export", road.task, "--data", road.table, "--out", new / "x"],
        "search": ["search", "table", "lr=1e-3,2e-3", *tuned, "--runs", 1, "--out", new / "s", *QUICK],
        "reproduce": ["reproduce", "sizes", "--scale", "smoke", "--out", new / "experiments"],
    }


def log_opened_files() -> None:
    """Log the path of every file that this process and its forks open for writing."""
    log = os.open(os.environ["OPENED_FILES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            os.write(log, os.path.abspath(os.fsencode(arguments[0])) + b"\n")  # noqa: PTH100

    sys.addaudithook(record)


@pytest.mark.parametrize("name", list(writing_commands(Road(*[Path()] * 6), Path())))
def test_visible_files_appear_by_renaming(name: str, road: Road, tmp_path: Path) -> None:
    """A reader never sees half a file: what is written has a hidden name or folder, except journals."""
    new = tmp_path / "new"
    new.mkdir()
    environment = {"OPENED_FILES": str(tmp_path / "opened"), "TMPDIR": str(tmp_path)}
    run = start(tmp_path / "log", *writing_commands(road, new)[name], environment=environment, before=log_opened_files)
    assert run.wait() == 0, run.printed_text()
    opened = {Path(line) for line in (tmp_path / "opened").read_text().splitlines()}
    below = [path.relative_to(new) for path in opened if path.is_relative_to(new)]
    visible = {path.name for path in below if not any(part.startswith(".") for part in path.parts)}
    assert {name for name in visible if name != "metrics.jsonl" and ".tfevents." not in name} == set()
    assert len(below) > len(visible)


@pytest.mark.parametrize("name", NAMES)
def test_text_for_a_person_goes_to_stdout_without_json(name: str, road: Road, tmp_path: Path) -> None:
    output_text = albert(*commands(road, tmp_path)[name])
    assert output_text.out.strip()
    assert "\033" not in output_text.out + output_text.err, "no color where there is no terminal"
    assert "Traceback" not in output_text.err


def test_notes_go_to_stderr(road: Road, tmp_path: Path) -> None:
    output_text = albert(*commands(road, tmp_path)["vocab"])
    assert "memory" in output_text.err
    assert "memory" not in output_text.out


def test_predict_prints_a_line_of_json_a_text(road: Road, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("bade fi\n\nkraste su\n", encoding="utf-8")
    lines = albert("predict", road.task, "--input", tmp_path / "in.txt", "--quiet").out.splitlines()
    values = [json.loads(line) for line in lines]
    assert [value["id"] for value in values] == ["1", "2", "3"]
    assert all(value["prediction"] in ("good", "bad") for value in values)
    assert all(set(value["probabilities"]) == {"good", "bad"} for value in values)


# ---------------------------------------------------------------- recipes


def test_list_names_every_recipe_with_a_sentence() -> None:
    output_text: dict[str, str] = json.loads(albert("recipes", "list", "--json").out)
    assert output_text.keys() == config.shipped_recipes().keys()
    assert {"mini/docs", "mini/wiki", "mini/table", "pretrain/albert-base", "finetune/mrpc"} <= output_text.keys()
    assert all(len(about) > 20 and about.endswith(".") for about in output_text.values())
    lines = albert("recipes", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(output_text)


@pytest.mark.parametrize("name", [n for n in sorted(config.shipped_recipes()) if not n.startswith("experiments/")])
def test_every_shipped_recipe_is_valid(name: str) -> None:
    resolved = tomllib.loads(albert("recipes", "validate", name).out)
    assert resolved == json.loads(albert("recipes", "validate", name, "--json").out)
    assert {"expected"} <= resolved.keys() or {"optimizer", "schedule", "train"} <= resolved.keys()


def test_show_prints_the_file_itself() -> None:
    name = "pretrain/albert-xxlarge"
    assert albert("recipes", "show", name).out.strip() == config.shipped_recipes()[name].read_text().strip()


def test_copy_then_edit_then_validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert albert("recipes", "copy", "mini/wiki").out == "wiki.toml\n"
    text = (tmp_path / "wiki.toml").read_text()
    assert text == config.shipped_recipes()["mini/wiki"].read_text()
    assert albert("recipes", "copy", "mini/wiki", expect=6).err.startswith("error: wiki.toml: already exists")
    assert albert("recipes", "copy", "mini/wiki", "--out", "sub/it.toml").out == "sub/it.toml\n"
    assert (tmp_path / "sub" / "it.toml").read_text() == text
    (tmp_path / "mine.toml").write_text('extends = "mini/wiki"\n[train]\nbatch_size = 8\n')
    assert json.loads(albert("recipes", "validate", "mine.toml", "--json").out)["train"]["batch_size"] == 8


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ("[schedule]\ntotal_steps = 10\nwarmup_steps = 20\n", "mine.toml: schedule.warmup_steps is 20"),
        ("[data]\nmax_seq_length = 4096\n", "mine.toml: data.max_seq_length is 4096"),
    ],
)
def test_a_recipe_whose_sections_do_not_go_together_is_not_valid(sections: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'extends = "mini/docs"\n{sections}')
    assert says in albert("recipes", "validate", tmp_path / "mine.toml", expect=2).err


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("finetune", "mrcp", "--checkpoint", "x", "--out", "y"), "did you mean 'mrpc'?"),
        (("eval", "sst-2", "--checkpoint", "x", "--out", "y"), "did you mean 'sst2'?"),
        (("params", "albert-bsae"), "did you mean 'albert-base'?"),
        (("recipes", "show", "mini/dcos"), "did you mean 'mini/docs'?"),
    ],
)
def test_a_name_that_is_nearly_right_gets_a_suggestion(arguments: tuple[str, ...], hint: str, road: Road) -> None:
    words = [str(road.run) if argument == "x" else argument for argument in arguments]
    assert f"hint: {hint}\n" in albert(*words, expect=2).err


# ---------------------------------------------------------------- params


def test_params_counts_what_a_checkpoint_holds(road: Road) -> None:
    from safetensors import safe_open

    step = next(road.run.glob("step-*"))
    with safe_open(step / "model.safetensors", "np") as tensors:
        stored = sum(tensors.get_tensor(name).size for name in tensors.keys())  # noqa: SIM118 (not a mapping)
    counted = json.loads(albert("params", step, "--json").out)["models"][0]
    assert counted["source"] == "checkpoint"
    assert counted["total"] == stored
    assert json.loads(albert("params", road.run, "--json").out)["models"][0]["total"] == stored


# ---------------------------------------------------------------- inspect


def test_inspect_says_what_a_directory_is(road: Road) -> None:
    kinds = {"vocabulary": road.vocabulary, "data": road.data, "run": road.run, "task": road.task}
    for kind, directory in kinds.items():
        assert json.loads(albert("inspect", directory, "--json").out)["kind"] == kind


def test_inspect_misses_what_the_manifest_names(road: Road, tmp_path: Path) -> None:
    copy = shutil.copytree(road.vocabulary, tmp_path / "vocabulary")
    (copy / "vocabulary.json").unlink()
    assert "vocabulary.json" in albert("inspect", copy, expect=4).err


def test_inspect_says_what_an_evaluation_found(road: Road, tmp_path: Path) -> None:
    albert(*commands(road, tmp_path)["eval"])
    output_text = json.loads(albert("inspect", tmp_path / "e", "--json").out)
    assert output_text["kind"] == "evaluation"
    assert output_text["results"]["seeds"] == [0, 1]
