from __future__ import annotations

import pytest

from albert_cli.text.docstring_prose import extract_prose

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


def test_extract_prose_from_numpydoc() -> None:
    assert extract_prose(NUMPYDOC) == [
        "Scale the rows of an array, so that each of them has a norm of one.",
        "The values that are going to be scaled, row by row.",
        "An array of the same shape as a with scaled rows.",
        "It is done in a loop like this one:",
        "The example above shows it for a single row.",
    ]


def test_extract_prose_from_google_style_and_markdown() -> None:
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
def test_extract_prose_leaves_out_other_text(docstring: str) -> None:
    assert extract_prose(docstring) == []
