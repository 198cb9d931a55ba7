"""The command line: help, output streams, `--json`, `--quiet`, written files, and the output of short commands."""

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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from albert_cli import __version__, config, errors
from albert_cli.cli import EPILOGUE, app
from albert_cli.cli.app import STAGES, report_error
from tests.helpers.command import QUICK, TINY, VERBS, albert, pretrained, write_table
from tests.helpers.processes import start

RECIPE_VERBS = ("list", "show", "copy", "validate")
ALL_VERBS = [(verb,) for verb in VERBS] + [("recipes", verb) for verb in RECIPE_VERBS]


# ---------------------------------------------------------------- help and version


def test_all_verbs_are_registered() -> None:
    registered = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    assert registered == set(VERBS)


@pytest.mark.parametrize("verb", ALL_VERBS, ids=" ".join)
def test_help_has_an_example_and_common_options(verb: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = albert(*verb, "--help")
    assert f"Example: albert {' '.join(verb)}" in result.out
    assert all(option in result.out for option in ("--json", "--quiet", "--debug"))
    assert result.err == ""


def test_help_groups_commands_by_stage() -> None:
    lines = albert("--help").out.splitlines()
    headings = [line.strip("╭─╮ ") for line in lines if line.startswith("╭─")]
    assert headings == ["Options", *STAGES]
    commands = [line.split()[1] for line in lines if re.match(r"│ [a-z]", line)]
    assert commands[:5] == ["quickstart", "doctor", "vocab", "data", "pretrain"]
    assert set(commands) == {*VERBS, "bench", "recipes"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [("albert pre", {"pretrain", "predict"}), ("albert pretrain --sa", {"--save-every"}), ("albert bench s", {"step"})],
)
def test_bash_completion_offers_matching_words(line: str, expected: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_ALBERT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with contextlib.redirect_stdout(io.StringIO()) as printed, pytest.raises(SystemExit):
        app(prog_name="albert")
    assert set(printed.getvalue().split()) == expected


def test_help_and_docs_list_every_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    printed = albert("--help").out
    assert " ".join(EPILOGUE.split()) in " ".join(printed.split())
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text(encoding="utf-8")
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
    rows = re.findall(r"^\| (\d[\d, ]*) \|", page.partition("## Exit codes")[2], re.MULTILINE)
    codes_in_docs = {int(code) for row in rows for code in row.split(",")}
    assert {int(code) for code in re.findall(r"\d+", EPILOGUE)} == codes_in_docs
    assert {0, 130} | codes <= codes_in_docs


def test_version_is_printed() -> None:
    assert albert("--version").out == f"albert {__version__}\n"


def test_encoding_error_shows_only_the_invalid_name(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"before": "b" * 500, "path": "texts/caf\udce9.txt", "after": "a" * 500}, ensure_ascii=False)
    with pytest.raises(UnicodeEncodeError) as raised:
        text.encode()
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    assert report_error(raised.value) == 3
    assert printed.getvalue().startswith("error: texts/caf")
    assert "before" not in printed.getvalue()


def test_onednn_failure_is_reported_as_out_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert report_error(RuntimeError("could not create a primitive")) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("error: out of memory: could not create a primitive\n")
    assert "bug" not in printed
    assert "batch.micro_tokens" in printed, "with it, train.micro_batch_size has no effect on a GPU"


def test_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "albert_cli", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == f"albert {__version__}\n"


def test_removed_working_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    command = f"rmdir ../gone && {shlex.quote(sys.executable)} -m albert_cli doctor"
    result = subprocess.run(["sh", "-c", command], cwd=tmp_path / "gone", capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr.startswith("error: the working directory no longer exists\nhint: ")


def test_error_does_not_go_to_stdout_if_stderr_is_closed() -> None:
    command = f"{shlex.quote(sys.executable)} -m albert_cli recipes show nowhere 2>&-"
    result = subprocess.run(["sh", "-c", command], stdout=subprocess.PIPE, text=True, check=False)
    assert (result.returncode, result.stdout) == (2, "")


def test_closed_pipe_behind_stdout_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "albert_cli", "recipes", "show", "mini/wiki"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, env=environment)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("pretrian",), "pretrain"),
        (("recipes", "lst"), "list"),
        (("vocab",), "SOURCE"),
        (("params", "--josn"), "--json"),
        (("data", "x.txt", "--vocab", "v"), "--out"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_suggestion(arguments: tuple[str, ...], message: str) -> None:
    result = albert(*arguments, expect=2)
    assert message in result.err
    assert result.out == ""


# ---------------------------------------------------------------- output streams


@dataclass(frozen=True)
class Artifacts:
    """The paths of tiny artifacts: a text, a vocabulary, data, a pretraining run, a table, and a fine-tuned run."""

    text: Path
    vocabulary: Path
    data: Path
    run: Path
    table: Path
    task: Path


@pytest.fixture(scope="module")
def artifacts(
    tmp_path_factory: pytest.TempPathFactory, documents: list[str], tiny_vocabulary: Path, tiny_data: Path
) -> Artifacts:
    folder = tmp_path_factory.mktemp("artifacts")
    text = folder / "text.txt"
    text.write_text("\n\n".join(documents[:60]), encoding="utf-8")
    run = pretrained(tiny_data, folder / "run")
    table = write_table(folder / "table")
    albert("finetune", "table", "--checkpoint", run, "--data", table, "--out", folder / "task", *QUICK)
    return Artifacts(text, tiny_vocabulary, tiny_data, run, table, folder / "task")


def commands(artifacts: Artifacts, new: Path) -> dict[str, list[object]]:
    """Return short commands, by name, which write only below `new`."""
    pretrain = ["pretrain", "mini/docs", "--data", artifacts.data, "--out", new / "r"]
    tuned = ["--checkpoint", artifacts.run, "--data", artifacts.table, *QUICK]
    scored = ["--checkpoint", artifacts.task, "--data", artifacts.table]
    return {
        "vocab": ["vocab", artifacts.text, "--size", 200, "--out", new / "v"],
        "data": ["data", artifacts.text, "--vocab", artifacts.vocabulary, "--out", new / "d", "--workers", 1],
        "pretrain": [*pretrain, *TINY],
        "pretrain --dry-run": [*pretrain, "--dry-run", *TINY],
        "pretrain --show-config": [*pretrain, "--show-config"],
        "finetune": ["finetune", "table", "--out", new / "f", *tuned],
        "eval": ["eval", "table", "--runs", 2, "--out", new / "e", *tuned],
        "eval of a task checkpoint": ["eval", "table", "--out", new / "s", *scored],
        "predict --out": ["predict", artifacts.task, "--input", artifacts.text, "--out", new / "p.jsonl"],
        "encode --out": ["encode", artifacts.run, "--input", artifacts.text, "--out", new / "v.safetensors"],
        "fill-mask": ["fill-mask", artifacts.run, "bade [MASK]"],
        "params": ["params"],
        "report": ["report", artifacts.run, artifacts.task, "--out", new / "report.html"],
        "inspect a vocabulary": ["inspect", artifacts.vocabulary],
        "inspect data": ["inspect", artifacts.data, "--examples", 2, "--verify"],
        "inspect a run": ["inspect", artifacts.run],
        "inspect a task": ["inspect", artifacts.task, "--verify"],
        "recipes list": ["recipes", "list"],
        "recipes show": ["recipes", "show", "mini/docs"],
        "recipes copy": ["recipes", "copy", "mini/docs", "--out", new / "mine.toml"],
        "recipes validate": ["recipes", "validate", "pretrain/albert-base"],
        "doctor": ["doctor"],
    }  # fmt: skip


NAMES = list(commands(Artifacts(*[Path()] * 6), Path()))


@pytest.mark.parametrize("name", NAMES)
def test_json_is_one_object_and_quiet_is_silent(name: str, artifacts: Artifacts, tmp_path: Path) -> None:
    result = albert(*commands(artifacts, tmp_path)[name], "--json", "--quiet")
    # --quiet does not hide warnings, and a model that trains so few steps may predict one class for all inputs.
    assert all(" collapsed: " in line for line in result.err.splitlines()), result.err
    assert result.out.endswith("}\n")
    assert result.out.count("\n") == 1
    assert isinstance(json.loads(result.out), dict)


# ---------------------------------------------------------------- files


def writing_commands(artifacts: Artifacts, new: Path) -> dict[str, list[object]]:
    """Return short commands, by name, which write below `new`."""
    tuned = ["--checkpoint", artifacts.run, "--data", artifacts.table]
    calls = {name: call for name, call in commands(artifacts, new).items() if "--out" in call}
    for name in ("pretrain --dry-run", "pretrain --show-config"):
        del calls[name]
    return calls | {
        "data --task": [
            "data",
            artifacts.text,
            "--vocab",
            artifacts.vocabulary,
            "--out",
            new / "parts",
            "--task",
            "0/2",
        ],
        "convert": ["convert", artifacts.run, "--out", new / "c"],
        "export": ["export", artifacts.task, "--data", artifacts.table, "--out", new / "x"],
        "search": ["search", "table", "lr=1e-3,2e-3", *tuned, "--runs", 1, "--out", new / "s", *QUICK],
        "reproduce": ["reproduce", "sizes", "--scale", "smoke", "--out", new / "experiments"],
    }


def run_and_log_opened_files(calls: Sequence[Sequence[object]], log: Path) -> None:
    """Run commands; log the path of every file that this process and its forks open for writing; then exit."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
            os.write(descriptor, os.path.abspath(os.fsencode(arguments[0])) + b"\n")  # noqa: PTH100

    sys.addaudithook(record)
    for call in calls:
        albert(*call)
    raise SystemExit


def test_visible_files_appear_by_renaming(artifacts: Artifacts, tmp_path: Path) -> None:
    """Files are written under hidden names, so that readers see only whole files; journals are the exception.

    One process runs all commands, because it cannot remove its audit hook; each command has its own folder.
    """
    new = tmp_path / "new"
    names = list(writing_commands(artifacts, new))
    calls = [writing_commands(artifacts, new / name)[name] for name in names]
    for name in names:
        (new / name).mkdir(parents=True)
    log = tmp_path / "opened"
    run = start(
        tmp_path / "log", environment={"TMPDIR": str(tmp_path)}, run_first=partial(run_and_log_opened_files, calls, log)
    )
    assert run.wait() == 0, run.printed_text()
    opened = {Path(line) for line in log.read_text().splitlines()}
    paths = [path.relative_to(new) for path in opened if path.is_relative_to(new)]
    hidden = [path for path in paths if any(part.startswith(".") for part in path.parts)]
    visible = set(paths) - set(hidden)
    assert {path for path in visible if path.name != "metrics.jsonl" and ".tfevents." not in path.name} == set()
    assert {path.parts[0] for path in hidden} == set(names)


@pytest.mark.parametrize("name", NAMES)
def test_text_without_json_goes_to_stdout_without_color(name: str, artifacts: Artifacts, tmp_path: Path) -> None:
    result = albert(*commands(artifacts, tmp_path)[name])
    assert result.out.strip()
    assert "\033" not in result.out + result.err, "colors are only for terminals"
    assert "Traceback" not in result.err


def test_notes_go_to_stderr(artifacts: Artifacts, tmp_path: Path) -> None:
    result = albert(*commands(artifacts, tmp_path)["vocab"])
    assert "memory" in result.err
    assert "memory" not in result.out


def test_predict_prints_one_json_line_per_input_line(artifacts: Artifacts, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("bade fi\n\nkraste su\n", encoding="utf-8")
    lines = albert("predict", artifacts.task, "--input", tmp_path / "in.txt", "--quiet").out.splitlines()
    values = [json.loads(line) for line in lines]
    assert [value["id"] for value in values] == ["1", "2", "3"]
    assert all(value["prediction"] in ("good", "bad") for value in values)
    assert all(set(value["probabilities"]) == {"good", "bad"} for value in values)


# ---------------------------------------------------------------- recipes


def test_list_describes_every_recipe() -> None:
    descriptions: dict[str, str] = json.loads(albert("recipes", "list", "--json").out)
    assert descriptions.keys() == config.shipped_recipes().keys() - {config.EXPERIMENT_DEFAULTS}
    assert {"mini/docs", "mini/wiki", "mini/table", "pretrain/albert-base", "finetune/mrpc"} <= descriptions.keys()
    assert all(len(description) > 20 and description.endswith(".") for description in descriptions.values())
    lines = albert("recipes", "list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(descriptions)


@pytest.mark.parametrize("name", [n for n in sorted(config.shipped_recipes()) if not n.startswith("experiments/")])
def test_every_shipped_recipe_is_valid(name: str) -> None:
    resolved = tomllib.loads(albert("recipes", "validate", name).out)
    assert resolved == json.loads(albert("recipes", "validate", name, "--json").out)
    assert {"expected"} <= resolved.keys() or {"optimizer", "schedule", "train"} <= resolved.keys()


@pytest.mark.parametrize("name", ["pretrain/continue", "mini/docs"])
def test_validated_recipe_can_be_used_as_a_recipe(name: str, finished: Path, tiny_data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(albert("recipes", "validate", name).out)
    call = ["--data", tiny_data, "--out", tmp_path / "run", "--show-config", "--json"]
    if name == "pretrain/continue":
        call += ["-s", f"warm_start.checkpoint={finished}", "-s", "data.max_seq_length=32"]
    printed = [albert("pretrain", recipe, *call).out for recipe in (name, tmp_path / "mine.toml")]
    assert json.loads(printed[0]) == json.loads(printed[1])


@pytest.mark.parametrize(("option", "value"), [("--save-every", "abc"), ("--keep", "0")])
def test_error_of_an_option_names_the_option(option: str, value: str, tiny_data: Path, tmp_path: Path) -> None:
    call = ["pretrain", "mini/docs", "--data", tiny_data, "--out", tmp_path / "run", option, value]
    assert option in albert(*call, expect=2).err


def test_show_prints_the_recipe_file() -> None:
    name = "pretrain/albert-xxlarge"
    assert albert("recipes", "show", name).out.strip() == config.shipped_recipes()[name].read_text().strip()


def test_copied_recipe_can_be_edited_and_validated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert albert("recipes", "copy", "mini/wiki").out == "wiki.toml\n"
    text = (tmp_path / "wiki.toml").read_text()
    assert text == config.shipped_recipes()["mini/wiki"].read_text()
    assert albert("recipes", "copy", "mini/wiki", expect=6).err.startswith("error: wiki.toml: already exists")
    assert albert("recipes", "copy", "mini/wiki", "--out", "sub/copy.toml").out == "sub/copy.toml\n"
    assert (tmp_path / "sub" / "copy.toml").read_text() == text
    (tmp_path / "mine.toml").write_text('extends = "mini/wiki"\n[train]\nbatch_size = 8\n')
    assert json.loads(albert("recipes", "validate", "mine.toml", "--json").out)["train"]["batch_size"] == 8


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ("[schedule]\ntotal_steps = 10\nwarmup_steps = 20\n", "mine.toml: schedule.warmup_steps is 20"),
        ("[data]\nmax_seq_length = 4096\n", "mine.toml: data.max_seq_length is 4096"),
    ],
)
def test_validate_rejects_inconsistent_sections(sections: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(f'extends = "mini/docs"\n{sections}')
    assert message in albert("recipes", "validate", tmp_path / "mine.toml", expect=2).err


def test_validate_partial_model_leaves_the_rest_open(tmp_path: Path) -> None:
    """The checkpoint, which only the run's command names, may have as many positions."""
    (tmp_path / "mine.toml").write_text(
        'extends = "continue"\n[data]\nmax_seq_length = 1024\n[model]\nattention = "window"\n'
    )
    printed = tomllib.loads(albert("recipes", "validate", tmp_path / "mine.toml").out)
    assert printed["model"] == {"attention": "window"}
    (tmp_path / "mine.toml").write_text('extends = "continue"\n[data]\nmax_seq_length = 1024\n')
    assert "model" not in tomllib.loads(albert("recipes", "validate", tmp_path / "mine.toml").out)
    (tmp_path / "mine.toml").write_text('extends = "continue"\nmodel = "albert-large"\n')
    assert "model is 'albert-large'" in albert("recipes", "validate", tmp_path / "mine.toml", expect=2).err


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
def test_misspelled_name_gets_a_suggestion(arguments: tuple[str, ...], hint: str, artifacts: Artifacts) -> None:
    command = [str(artifacts.run) if argument == "x" else argument for argument in arguments]
    assert f"hint: {hint}\n" in albert(*command, expect=2).err


# ---------------------------------------------------------------- params


def test_params_counts_the_parameters_of_a_checkpoint(artifacts: Artifacts) -> None:
    from safetensors import safe_open

    step = next(artifacts.run.glob("step-*"))
    with safe_open(step / "model.safetensors", "np") as tensors:
        stored = sum(tensors.get_tensor(name).size for name in tensors.keys())  # noqa: SIM118 (not a mapping)
    counts = json.loads(albert("params", step, "--json").out)["models"][0]
    assert counts["source"] == "checkpoint"
    assert counts["total"] == stored
    assert json.loads(albert("params", artifacts.run, "--json").out)["models"][0]["total"] == stored


# ---------------------------------------------------------------- inspect


def test_inspect_reports_the_kind_of_a_directory(artifacts: Artifacts) -> None:
    kinds = {"vocabulary": artifacts.vocabulary, "data": artifacts.data, "run": artifacts.run, "task": artifacts.task}
    for kind, directory in kinds.items():
        assert json.loads(albert("inspect", directory, "--json").out)["kind"] == kind


def test_inspect_reports_a_missing_file(artifacts: Artifacts, tmp_path: Path) -> None:
    copy = shutil.copytree(artifacts.vocabulary, tmp_path / "vocabulary")
    (copy / "vocabulary.json").unlink()
    assert "vocabulary.json" in albert("inspect", copy, expect=4).err


def test_inspect_shows_the_results_of_an_evaluation(artifacts: Artifacts, tmp_path: Path) -> None:
    albert(*commands(artifacts, tmp_path)["eval"])
    inspection = json.loads(albert("inspect", tmp_path / "e", "--json").out)
    assert inspection["kind"] == "evaluation"
    assert inspection["results"]["seeds"] == [0, 1]
