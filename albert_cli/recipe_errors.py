"""Explain why pydantic rejects a recipe: the key, what is wrong with its value, and a remedy."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
    hint = None
    is_single_key = len(first["loc"]) <= 3 and isinstance(first["loc"][-1], str)  # else: in a list or a dictionary
    choices = re.findall(r"'(.+?)'", first["msg"])
    if first["type"] == "tuple_type" and isinstance(first["input"], str | int | float):
        value = format_toml_value([first["input"]])
        hint = f"write a list: {key} = {value}"
        if is_single_key:
            hint += f", or -s '{key}={value}'"
    elif first["type"] == "literal_error" and choices and is_single_key:
        hint = f"write one of these words, for example -s {key}={choices[0]}"
    elif first["type"] == "literal_error":
        hint = f"use {first['ctx']['expected']}"
    return ConfigError(f"{key} is {first['input']!r}: {' or '.join(reasons)}", hint)


def _key_location(schema: object, location: Sequence[int | str]) -> Sequence[int | str]:
    """Return the path to the last key of the schema in a location ("recipe", section, key, …) of pydantic.

    The parts after this key are left out: an index, or the name of a type.
    """
    end = 3
    for position in range(end, len(location)):
        sections = [part for part in location[1:position] if isinstance(part, str)]
        if location[position] in _keys_at(schema, sections):
            end = position + 1
    return location[1:end]


def _unknown_key_error(schema: type[object], detail: ErrorDetails, section: str) -> ConfigError:
    """Return the error for an unknown key, with a hint: the same key in another section, or else a similar key.

    The other sections are the subsections of the key's section and the sections of the recipe.
    """
    # The location is ("recipe", section, …, key). Its integers are indices of lists, which are in no schema.
    *sections, key = (part for part in detail["loc"][1:] if isinstance(part, str))
    valid_keys = _keys_at(schema, sections)
    paths = [[*sections, name] for name in valid_keys]
    if sections:
        paths += [[name] for name in _keys_at(schema, [])]
    same_keys = [".".join([*path, key]) for path in paths if key in _keys_at(schema, path)]
    if same_keys:
        hint = f"did you mean {' or '.join(same_keys)}?"
    else:
        hint = suggest(key, valid_keys) or f"valid keys: {', '.join(valid_keys)}"
    full_key = ".".join(filter(None, (section, *sections, key)))
    return ConfigError(f"unknown key {full_key!r}", hint)


def _keys_at(schema: object, sections: Sequence[str]) -> list[str]:
    """Return the keys of the dataclass to which a path of nested sections leads; none if it leads to no dataclass."""
    dataclass_type = find_dataclass(schema)
    if dataclass_type is None:
        return []
    type_of_key = typing.get_type_hints(dataclass_type)
    if not sections:
        return list(type_of_key)
    name, *inner_sections = sections
    if name not in type_of_key:
        return []
    if typing.get_origin(type_of_key[name]) is dict and inner_sections:
        # The recipe chooses the keys of a dictionary: skip this one, and continue with the type of its values.
        value_type = typing.get_args(type_of_key[name])[1]
        return _keys_at(value_type, inner_sections[1:])
    return _keys_at(type_of_key[name], inner_sections)


def find_dataclass(hint: object) -> type[object] | None:
    """Return the dataclass in a type such as `Section`, `Section | None` or `tuple[Section, ...]`, or None."""
    for candidate in (hint, *typing.get_args(hint)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None
