"""Read the documentation installed on this machine as a corpus (`docs:`): the docstrings of Python modules.

This English technical prose needs no download and raises no question of license. Python's standard library has about
2 MB of it, and the packages that this program installs have 10 MB. The list of packages is fixed, so machines with
equal versions have equal text. The modules are parsed with `ast` and never imported.
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
from typing import NamedTuple

from albert_cli import executor, machine
from albert_cli.text.docstring_prose import extract_prose

_PACKAGE_NAMES = """
    torch torchgen numpy scipy sympy pandas sklearn matplotlib networkx pyarrow datasets huggingface_hub
    pydantic setuptools pip fsspec tokenizers sentencepiece safetensors typer rich jinja2 click joblib
    mpmath PIL fontTools pygments pyparsing packaging dateutil tqdm yaml filelock dill multiprocess
    contourpy markdown_it anyio httpx httpcore aiohttp requests urllib3 narwhals
"""
PACKAGES = tuple(_PACKAGE_NAMES.split())
# Tests are not documentation; vendored copies and frozen demos repeat other modules.
_SKIPPED_NAMES = """
    test tests testing _tests _testing idle_test lib2to3 turtledemo __phello__ __pycache__ site-packages
    dist-packages _vendor _vendored vendored_packages _distutils extern externals
"""
_SKIPPED_FOLDERS = frozenset(_SKIPPED_NAMES.split())
# With these functions torch and numpy set the docstrings of C code.
_DOCSTRING_SETTERS = ("add_docstr", "add_newdoc", "add_newdoc_for_scalar_type")
_CHUNK_FILES = 32  # files that a worker process reads at a time

# The documents of each corpus that this process has read to its end, by `stdlib_only`; about 15 MB in all. They are
# cached, because some commands read the same corpus twice.
_cached_documents: dict[bool, list[InstalledDoc]] = {}


class InstalledDoc(NamedTuple):
    """A documented module: its dotted name, and its text with one paragraph per line."""

    module: str
    text: str


def read_installed_docs(stdlib_only: bool = False) -> Iterator[InstalledDoc]:
    """Yield every documented module in a fixed order; a paragraph occurs only in the first module that has it."""
    if stdlib_only in _cached_documents:
        yield from _cached_documents[stdlib_only]
        return
    packages: tuple[str, ...] = PACKAGES
    workers = machine.available_cores()  # parsing all packages takes half a minute on one core
    if stdlib_only:
        packages = ()
        workers = 0  # this process reads the standard library in a few seconds
    modules = list(_iter_modules(packages))
    seen: set[str] = set()
    documents: list[InstalledDoc] = []
    # `closing` stops the worker processes if the caller does not read to the end.
    with closing(_iter_paragraphs([path for path, _ in modules], workers)) as paragraphs_by_file:
        for (_, module), paragraphs in zip(modules, paragraphs_by_file, strict=True):
            unseen = [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph not in seen]
            if unseen:
                seen.update(unseen)
                document = InstalledDoc(module, "\n".join(unseen))
                documents.append(document)
                yield document
    _cached_documents[stdlib_only] = documents


def _iter_paragraphs(paths: Sequence[Path], workers: int) -> Generator[list[str], None, None]:
    """Yield each file's paragraphs in the order of `paths`.

    workers: the number of worker processes that read the files; with 0, this process reads them.
    """
    finished: dict[int, list[list[str]]] = {}  # chunks that arrived early, by the index of their first file
    chunks = ((start, paths[start : start + _CHUNK_FILES]) for start in range(0, len(paths), _CHUNK_FILES))
    remedy = "use docs:stdlib, which is smaller"  # in the error if memory runs out and a worker process is killed twice
    next_start = 0
    with closing(executor.map_unordered(_read_chunk, chunks, workers, remedy)) as results:
        for (start, _), paragraphs_by_file in results:
            finished[start] = paragraphs_by_file
            while next_start in finished:
                yield from finished.pop(next_start)
                next_start += _CHUNK_FILES


def _read_chunk(start: int, paths: Sequence[Path]) -> list[list[str]]:
    """Return the paragraphs of each file; start: the index of the first file, by which the caller knows the chunk."""
    gc.disable()  # the garbage collector would take a quarter of the time, and syntax trees have no cycles
    try:
        return [_read_file(path) for path in paths]
    finally:
        gc.enable()


def _read_file(path: Path) -> list[str]:
    return [paragraph for docstring in _parse_docstrings(path) for paragraph in extract_prose(docstring)]


def _iter_modules(packages: Iterable[str]) -> Iterator[tuple[Path, str]]:
    """Yield (file, dotted name) of every module in the standard library and in those `packages` that are installed."""
    stdlib = Path(sysconfig.get_path("stdlib"))
    yield from _iter_modules_below(stdlib, ())
    for package in packages:
        spec = importlib.util.find_spec(package)  # finds a top-level package without importing it
        folders = spec.submodule_search_locations if spec else None
        for folder in folders or ():
            yield from _iter_modules_below(Path(folder), (package,))


def _iter_modules_below(folder: Path, parents: tuple[str, ...]) -> Iterator[tuple[Path, str]]:
    """Yield the modules of a folder and its subfolders; parents: the packages that contain the folder."""
    for path in sorted(folder.iterdir()):
        stem = path.stem
        if path.is_dir():
            if path.name not in _SKIPPED_FOLDERS and path.name.isidentifier():
                yield from _iter_modules_below(path, (*parents, path.name))
        elif path.suffix == ".py" and not stem.startswith("test_") and not stem.endswith("_test"):
            names = parents if stem == "__init__" else (*parents, stem)
            yield path, ".".join(names)


def _parse_docstrings(path: Path) -> list[str]:
    """Return a file's docstrings; an empty list for a file that is not valid Python."""
    source = path.read_bytes()
    # `pydoc_data.topics` has chapters of the language reference, as single-quoted strings in a dictionary.
    is_topics = path.parts[-2:] == ("pydoc_data", "topics.py")
    # Parsing takes most of the time, so files without docstrings are not parsed.
    if b'"""' not in source and b"'''" not in source and not is_topics:
        return []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # strings of other projects contain invalid escapes
            docstrings = list(_iter_docstrings(ast.parse(source).body, is_topics=is_topics))
    except (SyntaxError, ValueError, RecursionError):
        return []
    # The escape \0 in a docstring is a NUL, which no text file may contain.
    return [docstring for docstring in docstrings if "\0" not in docstring]


def _iter_docstrings(body: Iterable[ast.stmt], *, is_topics: bool = False) -> Iterator[str]:
    """Yield all docstrings in the body of a module or class, including those of attributes, functions and classes.

    is_topics: the module is `pydoc_data.topics`, whose long strings are yielded, too.
    """
    for node in body:
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield ast.get_docstring(node, clean=False) or ""
            case ast.ClassDef(body=class_body):
                yield from _iter_docstrings(class_body)
            case ast.If(body=first, orelse=second) | ast.Try(body=first, orelse=second):
                yield from _iter_docstrings([*first, *second])
            case ast.Expr(value=ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function))):
                if function in _DOCSTRING_SETTERS:
                    yield from _iter_long_strings(node)
            case ast.Assign() if is_topics:
                yield from _iter_long_strings(node)


def _iter_long_strings(node: ast.stmt) -> Iterator[str]:
    """Yield the string constants of a statement that have more than one line."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and "\n" in inner.value:
            yield inner.value
