"""Read the tables of a Markdown text."""

from __future__ import annotations

import re

Row = dict[str, str]  # the cells by header


def read_tables(text: str) -> list[list[Row]]:
    """Return the rows of every table; raises `ValueError` if a row has more or fewer cells than its table's header."""
    tables: list[list[Row]] = []
    headers: list[str] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            headers = []
        elif not headers:
            headers = _split_cells(line)
            tables.append([])
        elif not set(line) <= set("|-: "):  # the line below the headers
            tables[-1].append(dict(zip(headers, _split_cells(line), strict=True)))
    return tables


def find_table(text: str, *headers: str) -> list[Row]:
    """Return the rows of the first table that has these headers; an empty list if there is none."""
    return next((table for table in read_tables(text) if table and set(headers) <= table[0].keys()), [])


def _split_cells(line: str) -> list[str]:
    return [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
