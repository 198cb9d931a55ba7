"""The shape of the package, read from its source: which package imports which, and what is imported late."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import albert_cli

PACKAGE = Path(albert_cli.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (
    ("errors", "os_errors"),
    ("formatting", "randomness", "ranks"),
    ("matmul",),
    ("console", "store", "config", "hub_access", "machine"),
    ("array_jobs", "journal", "launch", "executor", "results", "work_plan"),
    ("text",),
    ("data",),
    ("model",),
    ("counting",),
    ("tasks",),
    ("training",),
    ("evaluation", "inference"),
    ("report",),
    ("doctor", "inspection", "work_status", "bench", "experiments", "quickstart"),
    ("cli",),
    ("__main__",),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# What a verb imports when it needs it; `albert --help` must not wait for any of these.
HEAVY = {"torch", "numpy", "pydantic", "sentencepiece", "tokenizers", "sentencex", "datasets", "huggingface_hub"}
HEAVY |= {"sklearn", "scipy", "matplotlib", "jinja2", "safetensors", "transformers"}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """The full name of every module that a file imports anywhere, `from package import module` included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(path: Path) -> str:
    """The row of LAYERS that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_a_module_imports_only_its_own_layer_and_lower_ones() -> None:
    assert list(imports(PACKAGE / "__init__.py")) == []
    for path in set(FILES) - {PACKAGE / "__init__.py"}:
        assert part_of(path) in LEVEL, f"name the layer of {relative(path)} in LAYERS"
        used = {name.split(".")[1] for name in imports(path) if name.startswith("albert_cli.")}
        higher = {name for name in used & LEVEL.keys() if LEVEL[name] > LEVEL[part_of(path)]}
        assert not higher, f"{relative(path)} imports {', '.join(sorted(higher))}, which lie above it"


def test_every_layer_exists() -> None:
    assert {part_of(path) for path in FILES} - {"__init__"} == LEVEL.keys()


# ---------------------------------------------------------------- imported late


def imported_by(make_app: str, *arguments: str) -> set[str]:
    """The top-level modules that a command line has imported when it ends."""
    script = (
        f"import sys\n{make_app}\n"
        f"try: app({list(arguments)!r})\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    return {name.split(".")[0] for name in done.stderr.split()}


@cache
def bare_application() -> set[str]:
    """Return the modules that typer imports when it parses an argument (newer versions use pydantic)."""
    app = "import typer\napp = typer.Typer()\n@app.command()\ndef verb(names: list[str]) -> None: print(names)"
    return imported_by(app, "a", "b")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("--version",),
        ("pretrain", "--help"),
        ("params",),
        ("params", "--json"),
        ("params", "pretrain/albert-base"),
        ("recipes", "list"),
        ("reproduce", "--help"),
    ],
    ids=" ".join,
)
def test_what_answers_at_once_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    modules = imported_by("from albert_cli.cli import app", *arguments)
    assert "albert_cli" in modules
    assert (modules - bare_application()) & HEAVY == set()


def test_the_command_line_imports_only_what_is_light() -> None:
    for path in PACKAGE.glob("cli/*.py"):
        at_top = [node for node in tree(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in at_top}
        third_party = {str(name).split(".")[0] for name in names} - sys.stdlib_module_names
        assert third_party <= {"typer", "albert_cli"}, relative(path)


# ---------------------------------------------------------------- never used


def test_no_module_imports_transformers_nor_pickle() -> None:
    forbidden = {"transformers", "pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
    for path in FILES:
        allowed = {"transformers"} if relative(path) == "bench/peer.py" else set()
        assert not {name.split(".")[0] for name in imports(path)} & forbidden - allowed, relative(path)


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Every call in a file with what is called, as written: `open`, `torch.load`, `model.to(device).eval`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_no_text_runs_as_code_nor_through_a_shell() -> None:
    forbidden = {"eval", "exec", "__import__", "torch.load", "torch.save", "np.load", "os.system"}
    for path in FILES:
        for call, name in calls(path):
            where = f"{relative(path)}:{call.lineno}"
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            is_restricted = name == "torch.load" and keywords.get("weights_only") == "True"
            assert name not in forbidden or is_restricted, where
            assert not any(keyword.arg in {"shell", "allow_pickle"} for keyword in call.keywords), where


def test_nothing_asks_a_clock_that_may_be_set() -> None:
    """Durations are measured by clocks that only go forward; times of files are compared for equality alone."""
    clocks = {"time.time", "time.time_ns", "time.localtime", "time.strftime", "datetime.now", "datetime.today"}
    for path in FILES:
        assert not {name for name in imports(path) if name in clocks}, relative(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                named = ".".join(ast.unparse(node).split(".")[-2:])
                assert named not in clocks, f"{relative(path)}:{node.lineno}: {named}"
