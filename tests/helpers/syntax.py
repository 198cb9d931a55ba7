"""Parse Python files once for all rules about the source."""

from __future__ import annotations

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a file's syntax tree."""
    gc.disable()  # the garbage collector would take more time than the parser, and syntax trees have no cycles
    try:
        return list(ast.walk(parse(path)))
    finally:
        gc.enable()
