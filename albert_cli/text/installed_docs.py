"""The documentation that is already on the machine, as a corpus: docstrings, read by `ast`, never imported.

English technical prose that needs no download and no licence question: about 2 MB in Python's standard library, and ten
more in what this program installs. The packages are a fixed list: machines with the same versions have the same text.
"""

from __future__ import annotations

import ast
import gc
import importlib.util
import sysconfig
import warnings
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from albert_cli import machine, pool
from albert_cli.text.docstring_prose import extract_prose

_PACKAGES = """
    torch torchgen numpy scipy sympy pandas sklearn matplotlib networkx pyarrow datasets huggingface_hub
    pydantic setuptools pip fsspec tokenizers sentencepiece safetensors typer rich jinja2 click joblib
    mpmath PIL fontTools pygments pyparsing packaging dateutil tqdm yaml filelock dill multiprocess
    contourpy markdown_it anyio httpx httpcore aiohttp requests urllib3 narwhals
"""
PACKAGES = tuple(_PACKAGES.split())
# Tests are not documentation; vendored copies and frozen demos say what is said elsewhere.
_SKIPPED = """
    test tests testing _tests _testing idle_test lib2to3 turtledemo __phello__ __pycache__ site-packages
    dist-packages _vendor _vendored vendored_packages _distutils extern externals
"""
_SKIPPED_FOLDERS = frozenset(_SKIPPED.split())
_DOCSTRING_SETTERS = ("add_docstr", "add_newdoc", "add_newdoc_for_scalar_type")  # how torch and numpy document C code
_CHUNK_FILES = 32  # files

_finished: dict[bool, list[tuple[str, str]]] = {}  # some 15 MB: a corpus is read more than once


def read_installed_docs(stdlib_only: bool = False) -> Iterator[tuple[str, str]]:
    """(module name, text) of every documented module; one paragraph per line, none twice, in a fixed order."""
    if stdlib_only in _finished:
        yield from _finished[stdlib_only]
        return
    modules = list(_modules(() if stdlib_only else PACKAGES))
    seen: set[str] = set()
    collected: list[tuple[str, str]] = []
    # Parsing takes half a minute on one core; the standard library alone is not worth starting processes for.
    workers = 0 if stdlib_only else machine.available_cores()
    with closing(_paragraphs_of_each([path for path, _ in modules], workers)) as found:
        for (_, name), paragraphs in zip(modules, found, strict=True):
            if new := [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph not in seen]:
                seen.update(new)
                collected.append((name, "\n".join(new)))
                yield collected[-1]
    _finished[stdlib_only] = collected


def _paragraphs_of_each(paths: Sequence[Path], workers: int) -> Generator[list[str], None, None]:
    """Each file's paragraphs in turn, read in this process or by several."""
    done = dict[int, list[list[str]]]()
    chunks = ((start, paths[start : start + _CHUNK_FILES]) for start in range(0, len(paths), _CHUNK_FILES))
    place = 0
    with closing(pool.map_unordered(_paragraphs, chunks, workers, "docs:stdlib takes less")) as found:
        for (start, _), paragraphs in found:
            done[start] = paragraphs
            while place in done:
                yield from done.pop(place)
                place += _CHUNK_FILES


def _paragraphs(start: int, paths: Sequence[Path]) -> list[list[str]]:
    gc.disable()  # the cyclic collector looks in vain through each new tree, a quarter of the time
    try:
        return [[p for docstring in _docstrings_of_file(path) for p in extract_prose(docstring)] for path in paths]
    finally:
        gc.enable()


def _modules(packages: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """(file, dotted module name) of the standard library and of those of `packages` that are installed."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    yield from _modules_below(stdlib, ())
    for package in packages:
        spec = importlib.util.find_spec(package)  # finds a top-level package without importing it
        for folder in (spec and spec.submodule_search_locations) or ():
            yield from _modules_below(Path(folder), (package,))


def _modules_below(folder: Path, parents: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    for path in sorted(folder.iterdir()):
        stem = path.stem
        if path.is_dir():
            if path.name not in _SKIPPED_FOLDERS and path.name.isidentifier():
                yield from _modules_below(path, (*parents, path.name))
        elif path.suffix == ".py" and not stem.startswith("test_") and not stem.endswith("_test"):
            yield path, ".".join(parents if stem == "__init__" else (*parents, stem))


def _docstrings_of_file(path: Path) -> list[str]:
    source = path.read_bytes()
    if b'"""' not in source and b"'''" not in source and path.stem != "topics":
        return []  # parsing is what takes the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            is_topics = path.parts[-2:] == ("pydoc_data", "topics.py")
            # A docstring with a NUL in it (an unescaped "\\0") is no text that a file could hold.
            return [text for text in _docstrings(ast.parse(source).body, is_topics) if "\0" not in text]
    except (SyntaxError, ValueError, RecursionError):
        return []


def _docstrings(body: Iterable[ast.stmt], is_topics: bool = False) -> Iterator[str]:
    """Every docstring of a module or class: its own, its attributes', its functions' and classes'."""
    for node in body:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield ast.get_docstring(node, clean=False) or ""
            case ast.ClassDef(body=inner):
                yield from _docstrings(inner)
            case ast.If(body=first, orelse=second) | ast.Try(body=first, orelse=second):
                yield from _docstrings([*first, *second])
            case ast.Expr(value=ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called))):
                if called in _DOCSTRING_SETTERS:
                    yield from _texts_within(node)
            case ast.Assign() if is_topics:  # pydoc's help topics, a dictionary of the language reference
                yield from _texts_within(node)


def _texts_within(node: ast.stmt) -> Iterator[str]:
    """The string constants of a statement that have more than one line."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and "\n" in inner.value:
            yield inner.value
