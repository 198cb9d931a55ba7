"""Rules about imports and calls, checked in the source: layers, late imports, and forbidden functions."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import albert_cli
from tests.helpers.syntax import nodes, parse

PACKAGE = Path(albert_cli.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = (
    ("errors", "os_errors"),
    ("formatting", "randomness", "ranks", "score_summary"),
    ("matmul", "recipe_errors"),
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
# Packages that commands import only when they need them; `albert --help` must import none of them.
HEAVY = {"torch", "numpy", "pydantic", "sentencepiece", "tokenizers", "sentencex", "datasets", "huggingface_hub"}
HEAVY |= {"sklearn", "scipy", "matplotlib", "jinja2", "safetensors", "transformers"}


def relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def imports(path: Path) -> list[str]:
    """Return the full name of every module that a file imports, at the top or in a function.

    `from package import name` gives `package` and `package.name`.
    """
    names = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{relative(path)}:{node.lineno}: imports are absolute"
            names += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
    return names


def top_level_name(path: Path) -> str:
    """Return the name in LAYERS of the package or module that contains a file."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def test_module_imports_only_its_own_layer_and_lower_ones() -> None:
    assert imports(PACKAGE / "__init__.py") == []
    for path in set(FILES) - {PACKAGE / "__init__.py"}:
        assert top_level_name(path) in LEVEL, f"add {relative(path)} to LAYERS"
        used = {name.split(".")[1] for name in imports(path) if name.startswith("albert_cli.")}
        higher = {name for name in used & LEVEL.keys() if LEVEL[name] > LEVEL[top_level_name(path)]}
        assert not higher, f"{relative(path)} imports {', '.join(sorted(higher))} from a higher layer"


def test_every_layer_exists() -> None:
    assert {top_level_name(path) for path in FILES} - {"__init__"} == LEVEL.keys()


# ---------------------------------------------------------------- late imports


FAST_COMMANDS = (
    *("--help", "--version", "pretrain --help", "params", "params --json", "params pretrain/albert-base"),
    *("recipes list", "reproduce --help"),
)
# The first call imports what typer itself needs to parse an argument (newer versions use pydantic).
IMPORTS = """
import json
import sys
import typer

def new_modules(app, line):
    try:
        app(line.split())
    except SystemExit as end:
        assert not end.code, (line, end.code)
    new = {name.split('.')[0] for name in sys.modules} - earlier
    earlier.update(new)
    return sorted(new)

def verb(names: list[str]) -> None:
    print(names)

earlier = set()
typer_app = typer.Typer()
typer_app.command()(verb)
new_modules(typer_app, "a b")
from albert_cli.cli import app
print(json.dumps({line: new_modules(app, line) for line in sys.argv[1:]}), file=sys.stderr)
"""


def test_fast_commands_import_no_heavy_package() -> None:
    """One process runs the commands one after the other, and prints the top-level modules that each of them adds."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", IMPORTS, *FAST_COMMANDS]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    modules = json.loads(result.stderr.splitlines()[-1])
    assert list(modules) == list(FAST_COMMANDS)
    assert "albert_cli" in modules["--help"]
    assert [(line, name) for line, names in modules.items() for name in names if name in HEAVY] == []


def test_cli_modules_import_only_typer_and_albert() -> None:
    for path in PACKAGE.glob("cli/*.py"):
        at_top = [node for node in parse(path).body if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in at_top}
        third_party = {str(name).split(".")[0] for name in names} - sys.stdlib_module_names
        assert third_party <= {"typer", "albert_cli"}, relative(path)


# ---------------------------------------------------------------- forbidden imports and calls


def test_no_module_imports_transformers_or_pickle() -> None:
    forbidden = {"transformers", "pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
    for path in FILES:
        allowed = {"transformers"} if relative(path) == "bench/peer.py" else set()
        assert not {name.split(".")[0] for name in imports(path)} & forbidden - allowed, relative(path)


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Yield every call in a file with its function as written: `open`, `torch.load`, `model.to(device).eval`."""
    for node in nodes(path):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def test_no_text_is_run_as_code_or_in_a_shell() -> None:
    forbidden = {"eval", "exec", "__import__", "torch.load", "torch.save", "np.load", "os.system"}
    for path in FILES:
        for call, name in calls(path):
            where = f"{relative(path)}:{call.lineno}"
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            weights_only = keywords.get("weights_only")
            is_restricted = name == "torch.load" and weights_only is not None and ast.unparse(weights_only) == "True"
            assert name not in forbidden or is_restricted, where
            assert not keywords.keys() & {"shell", "allow_pickle"}, where


def test_no_module_reads_a_clock_that_can_be_set() -> None:
    """Durations need a monotonic clock; times of files are only compared for equality."""
    clocks = {"time.time", "time.time_ns", "time.localtime", "time.strftime", "datetime.now", "datetime.today"}
    attributes = {name.partition(".")[2] for name in clocks}
    for path in FILES:
        assert not {name for name in imports(path) if name in clocks}, relative(path)
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in attributes:
                attribute = ".".join(ast.unparse(node).split(".")[-2:])
                assert attribute not in clocks, f"{relative(path)}:{node.lineno}: {attribute}"
