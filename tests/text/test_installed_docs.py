import ast
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from albert_cli.text import installed_docs
from albert_cli.text.corpus import read_documents
from albert_cli.text.docstring_prose import extract_prose
from albert_cli.text.work_units import split_sources

NUMPYDOC = """
    normalise(a, axis=-1)

    Scale the rows of an array, so that each of them
    has a :func:`~numpy.linalg.norm` of **one** [1]_.

    .. versionadded:: 1.2

    Parameters
    ----------
    a : array_like, shape (n, m)
        The values that are going to be scaled, row by row.
    axis : int, optional

    Returns
    -------
    out : ndarray
        An array of the same shape as ``a`` with scaled rows.

    Notes
    -----
    It is done in a loop like this one::

        for row in a:
            row /= norm(row)  # and this is the code that must go

    .. math:: \\\\sqrt{x} and other things that are no words

    ======  ======
    before  after the scaling of all the rows
    ======  ======

    Examples
    --------
    >>> normalise([[3, 4]])
    array of numbers that is printed by the example

    The example above shows it for a single row.
"""

GOOGLE = """Read a file and return its lines.

Args:
    path (str): The file that is going to be read,
        which must exist before the call.
    encoding: The name of a codec that Python knows.

Returns:
    list: The lines of the file without their ends.

```python
print("this is code and not a sentence at all")
```
- The first of the items in a `list <https://example.org>`_.
- The second one, which is [linked](https://example.org) too.

:param size: The largest number of bytes to be read.
:type size: int or None, whichever of them is given
:returns: Whatever was left in the file by then.
"""


def test_numpydoc_is_reduced_to_its_sentences() -> None:
    assert extract_prose(NUMPYDOC) == [
        "Scale the rows of an array, so that each of them has a norm of one.",
        "The values that are going to be scaled, row by row.",
        "An array of the same shape as a with scaled rows.",
        "It is done in a loop like this one:",
        "The example above shows it for a single row.",
    ]


def test_google_style_and_markdown_are_reduced_to_their_sentences() -> None:
    assert extract_prose(GOOGLE) == [
        "Read a file and return its lines.",
        "The file that is going to be read, which must exist before the call.",
        "The name of a codec that Python knows.",
        "The lines of the file without their ends.",
        "The first of the items in a list.",
        "The second one, which is linked too.",
        "The largest number of bytes to be read.",
        "Whatever was left in the file by then.",
    ]


@pytest.mark.parametrize(
    "docstring",
    ["", "Too short.", "import numpy as np and more", "x = a b c d e f g", ">>> one two three four five"],
)
def test_what_is_no_prose_is_left_out(docstring: str) -> None:
    assert extract_prose(docstring) == []


def test_all_kinds_of_docstrings_are_found() -> None:
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
    found = [text.strip() for text in installed_docs._iter_docstrings(ast.parse(source).body)]
    assert found == ["module", "class", "attribute", "method", "under a condition", "added later"]


def test_the_standard_library_is_a_corpus_read_without_importing_it() -> None:
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
    (portion,) = split_sources(["docs:stdlib"])
    assert portion.sha256() == sha256("".join(f"{d.name}\n{d.text}\n" for d in documents).encode()).hexdigest()


def test_tests_and_copies_are_left_out(tmp_path: Path) -> None:
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


def test_a_file_that_is_no_python_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b'"""text"""\nno python at all')
    assert installed_docs._parse_docstrings(path) == []
    path.write_bytes(b'"""caf\xe9"""')
    assert installed_docs._parse_docstrings(path) == []
