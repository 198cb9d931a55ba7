from __future__ import annotations

import ast
import sys
from hashlib import sha256
from pathlib import Path

from albert_cli.text import installed_docs
from albert_cli.text.corpus import read_documents
from albert_cli.text.work_units import split_sources


def test_iter_docstrings_yields_every_kind() -> None:
    source = '''
"""module"""
class A:
    """class"""
    x: int = 0
    """attribute"""
    async def f(self):
        "method"
        """no docstring"""
if True:
    def g():
        """under a condition"""
add_docstr(g, r"""
added later""")
other(g, """
not documentation""")
'''
    docstrings = [text.strip() for text in installed_docs._iter_docstrings(ast.parse(source).body)]
    assert docstrings == ["module", "class", "attribute", "method", "under a condition", "added later"]


def test_read_stdlib_docs_imports_no_module() -> None:
    before = set(sys.modules)
    documents = list(read_documents(["docs:stdlib"]))
    assert not {name for name in set(sys.modules) - before if name.startswith(("idlelib", "tkinter", "turtle"))}
    names = [d.name for d in documents]
    assert {"json.decoder", "pydoc_data.topics", "argparse", "tkinter"} <= set(names)
    assert len(names) == len(set(names))
    assert not [n for n in names if n.startswith(("test.", "numpy", "site-packages"))]
    paragraphs = [p for d in documents for p in d.text.split("\n")]
    assert len(paragraphs) == len(set(paragraphs)) > 10_000
    assert sum(map(len, paragraphs)) > 1_000_000
    assert not [p for p in paragraphs if ">>>" in p or p != " ".join(p.split())]
    (unit,) = split_sources(["docs:stdlib"])
    assert unit.sha256() == sha256("".join(f"{d.name}\n{d.text}\n" for d in documents).encode()).hexdigest()


def test_iter_modules_skips_tests_and_vendored_copies(tmp_path: Path) -> None:
    for name in (
        "__init__.py",
        "a.py",
        "sub/__init__.py",
        "sub/b.py",
        "tests/c.py",
        "_vendor/d.py",
        "test_e.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    names = [name for _, name in installed_docs._iter_modules_below(tmp_path, ("pkg",))]
    assert names == ["pkg", "pkg.a", "pkg.sub", "pkg.sub.b"]


def test_parse_docstrings_of_invalid_python_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b'"""text"""\nno python at all')
    assert installed_docs._parse_docstrings(path) == []
    path.write_bytes(b'"""caf\xe9"""')
    assert installed_docs._parse_docstrings(path) == []
