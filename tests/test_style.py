"""The rules of docs/style.md that a program can check."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.syntax import nodes

ROOT = Path(__file__).parents[1]
PACKAGE = sorted((ROOT / "albert_cli").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SOURCES = [*PACKAGE, *TESTS, *sorted((ROOT / "benchmarks").rglob("*.py"))]
PROSE = [*PACKAGE, *sorted((ROOT / "recipes").rglob("*.toml")), *sorted((ROOT / "docs").rglob("*.md"))]
PROSE = [path for path in [*PROSE, ROOT / "README.md", ROOT / "CHANGELOG.md"] if path.name != "style.md"]

NO_NAMES = {"found", "own", "given", "there", "of", "what", "beside", "kept", "known", "those", "place", "places"}
NO_NAMES |= {"each", "others", "asked", "why"}
NO_OPENING = re.compile(r"(What|Whether|Where|How|Which|Who|When|Why)\b")
NO_PHRASE = re.compile(
    r"\b(goes on|going on|begins? anew|for want of|by way of|learnt|stands in|at hand|asked for|of one's own|so few)\b"
)


def at(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def assigned_names(path: Path) -> Iterator[tuple[str, int]]:
    for node in nodes(path):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def test_names_say_what_a_thing_is() -> None:
    bad = [f"{at(path, line)} {name}" for path in SOURCES for name, line in assigned_names(path) if name in NO_NAMES]
    assert bad == []


def test_class_names_occur_once() -> None:
    where = defaultdict(list)
    for path in PACKAGE:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                where[node.name].append(at(path, node.lineno))
    assert {name: locations for name, locations in where.items() if len(locations) > 1} == {}


def test_docstrings_begin_with_no_question_word() -> None:
    bad = []
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node) or ""
                if NO_OPENING.match(docstring):
                    bad.append(f"{at(path, getattr(node, 'lineno', 1))} {docstring.splitlines()[0]}")
    assert bad == []


def test_a_statement_assigns_at_most_two_listed_values() -> None:
    bad = [
        at(path, node.lineno)
        for path in PACKAGE
        for node in nodes(path)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)
        if len(node.value.elts) > 2
    ]
    assert bad == []


def test_functions_have_at_most_sixty_lines() -> None:
    bad = [
        f"{at(path, node.lineno)} {node.name}"
        for path in PACKAGE
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno >= 60
    ]
    assert bad == []


def test_files_have_at_most_four_hundred_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE}
    assert {path.name: length for path, length in lengths.items() if length > 400} == {}


def test_conditional_expressions_are_not_chained() -> None:
    bad = [
        at(path, node.lineno)
        for path in PACKAGE
        for node in nodes(path)
        if isinstance(node, ast.IfExp) and any(isinstance(child, ast.IfExp) for child in ast.iter_child_nodes(node))
    ]
    assert bad == []


def test_walrus_occurs_in_conditions_only() -> None:
    bad = []
    for path in PACKAGE:
        conditions = [node.test for node in nodes(path) if isinstance(node, ast.If | ast.While)]
        conditions += [test for node in nodes(path) if isinstance(node, ast.comprehension) for test in node.ifs]
        allowed = {id(inner) for condition in conditions for inner in ast.walk(condition)}
        bad += [
            at(path, node.lineno) for node in nodes(path) if isinstance(node, ast.NamedExpr) and id(node) not in allowed
        ]
    assert bad == []


def test_prose_uses_the_words_of_the_field() -> None:
    bad = [
        f"{at(path, i)} {line.strip()}"
        for path in PROSE
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if NO_PHRASE.search(line)
    ]
    assert bad == []


def test_test_names_have_at_most_sixty_characters() -> None:
    bad = [
        f"{at(path, node.lineno)} {node.name}"
        for path in TESTS
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and len(node.name) > 60
    ]
    assert bad == []


def test_test_modules_do_not_import_each_other() -> None:
    bad = [
        at(path, node.lineno)
        for path in TESTS
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and re.search(r"\btest_|\bconftest$", node.module or "")
    ]
    assert bad == []


def test_helpers_of_tests_have_their_folders() -> None:
    folders = ("helpers", "campaigns", "cluster")
    names = [path.relative_to(ROOT / "tests") for path in TESTS]
    modules = [name for name in names if not name.name.startswith("test_") and name.parts[0] not in folders]
    assert [name for name in modules if name.name not in ("__init__.py", "conftest.py")] == []
