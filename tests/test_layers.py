"""The shape of the package, read from its source: who may import whom, what is imported late, who writes."""

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


# ---------------------------------------------------------------- who writes

# Besides store/. These fill a directory that store/ has staged (and will flush, hash and rename), or make one where
# jobs meet.
WRITES = {
    ("journal.py", "open"): "a line at the end of a journal",
    ("launch.py", "TemporaryDirectory"): "where the ranks mark what they have printed",
    ("ranks.py", "mkdir"): "such a mark",
    ("data/writer.py", "open"): "token ids, streamed into a staged shard",
    ("data/writer.py", "write_bytes"): "boundaries and token counts, into a staged shard",
    ("data/build.py", "mkdir"): "the folder that the jobs of an array share",
    ("data/merge.py", "mkdir"): "the vocabulary's folder in the staged directory",
    ("data/merge.py", "write_bytes"): "piece counts, into a staged directory",
    ("data/rewrites.py", "copyfile"): "hashes, into a staged directory",
    ("inference/onnx_files.py", "mkdir"): "the folder of ONNX files in a staged directory",
    ("model/hub.py", "save_file"): "weights, into a staged checkpoint",
    ("training/loop.py", "TemporaryDirectory"): "where the journal of a measurement lies",
    ("training/checkpoint.py", "save_file"): "moments, into a staged checkpoint",
    ("training/text_match.py", "save_file"): "token counts, into a staged checkpoint",
    ("training/finetune.py", "save_file"): "the best weights so far, into a staged checkpoint",
    ("report/figures.py", "savefig"): "an image in memory",
}
WRITERS = {"write_text", "write_bytes", "mkdir", "makedirs", "touch", "tofile", "save_file", "savefig", "savez", "dump"}
WRITERS |= {"symlink_to", "hardlink_to", "mkdtemp", "mkstemp", "NamedTemporaryFile", "TemporaryDirectory", "copyfile"}
WRITERS |= {"copytree", "copy2"}


def writes(path: Path) -> Iterator[tuple[str, int]]:
    """Calls that put bytes or directories on the disk, other than through `store`: their name and line."""
    for call, name in calls(path):
        last = name.rsplit(".", 1)[-1]
        if name.startswith("store."):
            continue
        if last == "open":
            arguments = [*call.args, *(k.value for k in call.keywords if k.arg == "mode")]
            modes = [str(a.value) for a in arguments if isinstance(a, ast.Constant)]
            if any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax+") for mode in modes):
                yield "open", call.lineno
        elif last in WRITERS:
            yield last, call.lineno


def test_only_the_store_writes() -> None:
    writers = {
        (relative(path), name): line for path in FILES for name, line in writes(path) if path.parent.name != "store"
    }
    new = {f"{file}:{line} {name}" for (file, name), line in writers.items() if (file, name) not in WRITES}
    assert not new, f"write through albert_cli/store: {', '.join(sorted(new))}"
    assert WRITES.keys() <= writers.keys(), "these exceptions are no longer needed"


def test_the_writing_rule_sees_what_it_must(tmp_path: Path) -> None:
    lines = ['open(p, "w")', 'p.open("ab")', 'p.open(mode="r+b")', 'p.open("rb")', "open(p)", 'p.write_text("x")']
    (tmp_path / "example.py").write_text("\n".join([*lines, 'store.write_text(p, "x")']))
    assert [line for _, line in writes(tmp_path / "example.py")] == [1, 2, 3, 6]


def test_nothing_asks_a_clock_that_may_be_set() -> None:
    """Durations are measured by clocks that only go forward; times of files are compared for equality alone."""
    clocks = {"time.time", "time.time_ns", "time.localtime", "time.strftime", "datetime.now", "datetime.today"}
    for path in FILES:
        assert not {name for name in imports(path) if name in clocks}, relative(path)
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                named = ".".join(ast.unparse(node).split(".")[-2:])
                assert named not in clocks, f"{relative(path)}:{node.lineno}: {named}"
