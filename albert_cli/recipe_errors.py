"""Explain why pydantic rejects a recipe: the key, what is wrong with its value, and a remedy."""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from albert_cli.errors import ConfigError
from albert_cli.formatting import format_toml_value, suggest

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def translate_validation_error(schema: type[object], error: ValidationError, section: str) -> ConfigError:
    """Return the error for the first unknown key that pydantic lists, or else for the first problem that it lists."""
    details = error.errors()
    for detail in details:
        if detail["type"] == "unexpected_keyword_argument":
            return _unknown_key_error(schema, detail, section)
    first = details[0]
    path = _key_location(schema, first["loc"])
    key = ".".join(filter(None, (section, *map(str, path))))
    if first["type"] == "missing":
        return ConfigError(f"{key} is missing", "add this key")
    # A key of several types has a problem for each of them.
    same_key = [detail["msg"] for detail in details if detail["loc"][: len(path) + 1] == first["loc"][: len(path) + 1]]
    first_reason, *other_reasons = dict.fromkeys(same_key)
    reasons = [first_reason.replace("Input should", "it should", 1)]
    reasons += [reason.removeprefix("Input should be ") for reason in other_reasons]
    hint = _value_hint(key, first, type_at(schema, path))
    return ConfigError(f"{key} is {first['input']!r}: {' or '.join(reasons)}", hint)


def _value_hint(key: str, detail: ErrorDetails, expected: object) -> str | None:
    """Return the remedy for a value that pydantic rejects; None if there is no special one.

    key: the value's full key. expected: the type of the key's value.
    """
    value = detail["input"]
    is_single_key = len(detail["loc"]) <= 3 and isinstance(detail["loc"][-1], str)  # else: in a list or a dictionary
    choices = re.findall(r"'(.+?)'", detail["msg"])
    if detail["type"] == "tuple_type" and isinstance(value, str | int | float):
        listed = format_toml_value(_list_items(value, expected))
        hint = f"write a list: {key} = {listed}"
        return f"{hint}, or -s '{key}={listed}'" if is_single_key else hint
    if detail["type"] == "bool_type":
        return "write true or false"
    if detail["type"] in ("int_type", "float_type") and isinstance(value, str):
        number = _parse_number(value, is_integer=detail["type"] == "int_type")
        return None if number is None else f"write {number}"
    if detail["type"] == "literal_error" and choices and is_single_key:
        return f"write one of these words, for example -s {key}={choices[0]}"
    if detail["type"] == "literal_error":
        return f"use {detail['ctx']['expected']}"
    return None


def _list_items(value: str | float, expected: object) -> list[object]:
    """Return the items that a value contains instead of a list, such as `a,b` or `[a, b]` without quotes.

    expected: the type of the list. If its items are numbers, so are those of the result, if possible.
    """
    if not isinstance(value, str):
        return [value]
    texts = [item.strip().strip("\"'") for item in value.strip().removeprefix("[").removesuffix("]").split(",")]
    numbers = [_parse_number(text, is_integer=int in typing.get_args(expected)) for text in texts]
    is_numeric = not {int, float}.isdisjoint(typing.get_args(expected)) and None not in numbers
    return list(numbers if is_numeric else texts)


def _parse_number(text: str, *, is_integer: bool) -> float | None:
    """Return the number that a text spells in a way that TOML does not allow, such as `.5`; None if it spells none."""
    try:
        return int(text) if is_integer else float(text)
    except ValueError:
        return None


def _key_location(schema: object, location: Sequence[int | str]) -> Sequence[int | str]:
    """Return the path to the last key of the schema in a location ("recipe", section, key, …) of pydantic.

    The parts after this key are left out: an index, or the name of a type.
    """
    end = 3
    for position in range(end, len(location)):
        sections = [part for part in location[1:position] if isinstance(part, str)]
        if location[position] in types_of_keys(type_at(schema, sections)):
            end = position + 1
    return location[1:end]


def _unknown_key_error(schema: type[object], detail: ErrorDetails, section: str) -> ConfigError:
    """Return the error for an unknown key, with a hint: the same key in another section, or else a similar key.

    The other sections are the subsections of the key's section and the sections of the recipe.
    """
    # The location is ("recipe", section, …, key). Its integers are indices of lists, which are in no schema.
    *sections, key = (part for part in detail["loc"][1:] if isinstance(part, str))
    valid_keys = list(types_of_keys(type_at(schema, sections)))
    paths = [[*sections, name] for name in valid_keys]
    if sections:
        paths += [[name] for name in types_of_keys(schema)]
    same_keys = [".".join([*path, key]) for path in paths if key in types_of_keys(type_at(schema, path))]
    if same_keys:
        hint = f"did you mean {' or '.join(same_keys)}?"
    else:
        hint = suggest(key, valid_keys) or f"valid keys: {', '.join(valid_keys)}"
    full_key = ".".join(filter(None, (section, *sections, key)))
    return ConfigError(f"unknown key {full_key!r}", hint)


def type_at(schema: object, path: Sequence[int | str]) -> object:
    """Return the type of the value to which a path of keys leads; None if it leads to no value of the schema."""
    for key in path:
        if typing.get_origin(schema) is dict:  # the recipe chooses its keys
            schema = typing.get_args(schema)[1]
        else:
            schema = types_of_keys(schema).get(str(key))
    return schema


def types_of_keys(schema: object) -> Mapping[str, object]:
    """Return the types of a dataclass's keys; none if `schema` is the type of another value."""
    section: Any = _find_dataclass(schema)  # `Any`, because mypy accepts only hashable arguments of a cached function
    return {} if section is None else _resolve_types(section)


@functools.cache
def _resolve_types(section: type[object]) -> Mapping[str, object]:
    """Return the types of a dataclass's keys; cached, because an unknown key needs those of every section."""
    return typing.get_type_hints(section)


def _find_dataclass(hint: object) -> type[object] | None:
    """Return the dataclass in a type such as `Section`, `Section | None` or `tuple[Section, ...]`, or None."""
    for candidate in (hint, *typing.get_args(hint)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None
