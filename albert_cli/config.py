"""Recipes: TOML files that are read, merged, validated and frozen into dataclasses.

Precedence: defaults < the recipe that is extended < the recipe < `-s section.key=value`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import itertools
import json
import re
import tomllib
import typing
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast

import tomli_w
from annotated_types import Ge, Gt, Lt

from albert_cli.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

T = TypeVar("T")
RecipeValues: TypeAlias = dict[str, Any]  # nested, as TOML gives them; `load_recipe` makes a dataclass of them

# Types of a recipe's numbers; pydantic states the bounds in its messages.
PositiveInt = Annotated[int, Ge(1), Lt(2**62)]
NonNegativeInt = Annotated[int, Ge(0), Lt(2**62)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # such as a dropout rate
PositiveFraction = Annotated[float, Gt(0), Lt(1)]
_PACKAGE = Path(__file__).parent
# Installed, the recipes are inside the package; in a checkout, next to it.
RECIPES_DIR = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "recipes"
# Mutually exclusive keys: setting one removes the other, inherited from a base recipe.
EXCLUSIVE_KEYS = {"epochs": "total_steps", "total_steps": "epochs", "warmup_ratio": "warmup_steps"}


# ---------------------------------------------------------------- finding and reading


@functools.cache
def shipped_recipes() -> Mapping[str, Path]:
    """Return the files of all shipped recipes by name, such as `mini/docs` or `pretrain/albert-base`."""
    return {p.relative_to(RECIPES_DIR).with_suffix("").as_posix(): p for p in sorted(RECIPES_DIR.rglob("*.toml"))}


def find_recipe(name: str) -> Path:
    """Return a recipe's file by path, full name (`pretrain/albert-base`) or last part; raise `ConfigError` if none."""
    if name.endswith(".toml"):
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(f"{name}: no such recipe file", "`albert recipes list` lists the shipped recipes")
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    matches = [full for full in shipped if full.rsplit("/", 1)[-1] == name]
    if len(matches) == 1:
        return shipped[matches[0]]
    if matches:
        raise ConfigError(f"recipe {name!r} is ambiguous", f"write one of {', '.join(matches)}")
    hint = suggest(name, shipped) or "`albert recipes list` lists the shipped recipes"
    raise ConfigError(f"no recipe is called {name!r}", hint)


def suggest(word: str, names: Sequence[str] | Mapping[str, object]) -> str | None:
    """Return a "did you mean" hint, or None if no name is similar; of a path, its last part is compared too."""
    by_short_name = {full.rsplit("/", 1)[-1]: full for full in names} | {full: full for full in names}
    similar = difflib.get_close_matches(word, list(by_short_name), n=1, cutoff=0.6)
    return f"did you mean {by_short_name[similar[0]]!r}?" if similar else None


def read_recipe(name: str, *children: Path) -> RecipeValues:
    """Read a recipe as nested dictionaries, merged over the recipe that it `extends`.

    children: the recipes that extend this one; none may be extended again.
    """
    path = find_recipe(name)
    if path.resolve() in children:
        raise ConfigError(f"{path}: `extends` forms a circle", "remove one of the `extends` keys")
    values = _read_toml(path)
    parent = values.pop("extends", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise ConfigError(f'{path}: extends must be the name of a recipe, such as extends = "albert-base"')
    parent_path = _find_parent(path, parent)
    return merge_values(read_recipe(str(parent_path), *children, path.resolve()), values)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    if _is_empty(values):  # a truncated file would silently train a model of the defaults
        raise ConfigError(f"{path}: sets nothing", "restore it, or write one: `albert recipes copy NAME`")
    return values


def _is_empty(values: Mapping[str, object]) -> bool:
    return all(isinstance(value, Mapping) and _is_empty(value) for value in values.values())


def _find_parent(path: Path, parent: str) -> Path:
    """Return the extended recipe's file: a path relative to the recipe, or a recipe's name."""
    sibling = path.parent / parent
    if parent.endswith(".toml") and sibling.is_file():
        return sibling
    try:
        return find_recipe(parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: extends: {error.message}", error.hint) from None


def merge_values(base: Mapping[str, object], over: Mapping[str, object]) -> RecipeValues:
    """Return `base` with the values of `over`, section by section."""
    excluded = {EXCLUSIVE_KEYS[key] for key in over if key in EXCLUSIVE_KEYS}
    merged = {key: value for key, value in base.items() if key not in excluded}
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_values(old, value)
        else:
            merged[key] = value
    return merged


def parse_override(text: str) -> dict[str, object]:
    """Parse one `-s section.key=value` into a nested dictionary; the value is TOML, or a bare string."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"-s {text}: expected section.key=value", "for example -s optimizer.lr=1e-3")
    try:
        leaf: object = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        leaf = value.strip()
    nested = {parts[-1]: leaf}
    for part in reversed(parts[:-1]):
        nested = {part: nested}
    return nested


def apply_overrides(values: Mapping[str, object], overrides: Sequence[str]) -> RecipeValues:
    """Return a recipe's values with every `-s section.key=value` applied; the last one of a key counts."""
    over: dict[str, object] = {}
    for text in overrides:
        over = merge_values(over, parse_override(text))
    return merge_values(values, over)


def read_description(path: Path) -> str:
    """Return the first sentence of a recipe's first comment."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    comment = " ".join(line.strip("# ") for line in lines)
    return re.split(r"(?<=\.) +(?=[A-Z])", comment)[0]


# ---------------------------------------------------------------- validation


def load_recipe(schema: type[T], recipe: str | Mapping[str, object], overrides: Sequence[str] = ()) -> T:
    """Read a recipe (a name, a path, or values) with overrides into a frozen dataclass; raise `ConfigError`."""
    values = read_recipe(recipe) if isinstance(recipe, str) else recipe
    origin = recipe if isinstance(recipe, str) else "recipe"
    return validate_recipe(schema, apply_overrides(values, overrides), origin)


def validate_recipe(schema: type[T], values: Mapping[str, object], origin: str, section: str = "") -> T:
    """Check nested dictionaries against a dataclass: strict types, no unknown keys; raise `ConfigError`.

    origin: the recipe's name, which begins the message. section: the name of the section that the values are from.
    """
    from pydantic import ValidationError

    # In JSON mode pydantic accepts TOML's integers as floats and its arrays as tuples, and still rejects "12" for 12.
    text = json.dumps({"recipe": values}, default=str)
    with prefix_errors(origin):
        try:
            model = _recipe_model(cast(Hashable, schema)).model_validate_json(text)
        except ValidationError as error:
            raise _translate_validation_error(schema, error, section) from None
    return cast(T, model.recipe)  # type: ignore[attr-defined]


@functools.cache
def _recipe_model(schema: Hashable) -> type[BaseModel]:
    """Build a strict pydantic model around a dataclass; its settings apply to the dataclasses inside, too."""
    from pydantic import ConfigDict, create_model

    settings = ConfigDict(strict=True, extra="forbid")
    return create_model("Recipe", __config__=settings, recipe=(cast(type[object], schema), ...))


def _translate_validation_error(schema: type[object], error: ValidationError, section: str) -> ConfigError:
    """Translate pydantic's first finding, unknown keys before others, into a message with the key's full name."""
    findings = error.errors()
    unknown = [finding for finding in findings if finding["type"] == "unexpected_keyword_argument"]
    if unknown:
        return _unknown_key_error(schema, unknown[0], section)
    first = findings[0]
    # After two parts a location names a member of a union or an index.
    key = ".".join(filter(None, (section, *map(str, first["loc"][1:3]))))
    if first["type"] == "missing":
        return ConfigError(f"{key} is missing", "add this key")
    reason = first["msg"].replace("Input should", "it should", 1)
    return ConfigError(f"{key} is {first['input']!r}: {reason}")


def _unknown_key_error(schema: type[object], finding: ErrorDetails, section: str) -> ConfigError:
    *sections, key = (part for part in finding["loc"][1:] if isinstance(part, str))
    siblings = _keys_at(schema, sections)
    nested = [f"{name}.{key}" for name in siblings if key in _keys_at(schema, [*sections, name])]
    hint = f"did you mean {' or '.join(nested)}?" if nested else suggest(key, siblings)
    name = ".".join(filter(None, (section, *sections, key)))
    return ConfigError(f"unknown key {name!r}", hint or f"valid keys: {', '.join(siblings)}")


def _keys_at(schema: object, path: Sequence[str]) -> list[str]:
    """Return the keys of the dataclass at a path of section names; none if there is no dataclass."""
    section = _find_dataclass(schema)
    if section is None:
        return []
    hints = typing.get_type_hints(section)
    if not path:
        return list(hints)
    name, *rest = path
    if name not in hints:
        return []
    if typing.get_origin(hints[name]) is dict and rest:  # its sections are named by the recipe
        return _keys_at(typing.get_args(hints[name])[1], rest[1:])
    return _keys_at(hints[name], rest)


def _find_dataclass(hint: object) -> type[object] | None:
    """Return the dataclass in a type such as `Section`, `Section | None` or `tuple[Section, ...]`."""
    candidates = (hint, *typing.get_args(hint))
    return next((t for t in candidates if isinstance(t, type) and dataclasses.is_dataclass(t)), None)


@contextmanager
def prefix_errors(origin: str) -> Iterator[None]:
    """Begin the message of every `ConfigError` in the block with the recipe's name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.message}", error.hint) from None


# ---------------------------------------------------------------- writing


def to_toml_values(settings: object) -> RecipeValues:
    """Return a dataclass, or a mapping, as nested dictionaries and lists of TOML's types, without None."""
    return dict(cast(Mapping[str, object], _to_toml_value(settings)))


def _to_toml_value(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {key: _to_toml_value(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_to_toml_value(inner) for inner in value]
    return value


def dump_toml(settings: object) -> str:
    """Return the resolved recipe as TOML."""
    return tomli_w.dumps(to_toml_values(settings), indent=2)


def format_toml_value(value: object) -> str:
    """Return a value as TOML on one line, as in `-s key=VALUE`."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_toml_value, value))}]"
    return tomli_w.dumps({"value": value}).strip().removeprefix("value = ")


def list_differences(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield lines `section.key: old -> new` for all differences between two recipes."""
    for key in sorted({*old, *new}):
        old_value = old.get(key)
        new_value = new.get(key)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            yield from list_differences(old_value, new_value, f"{prefix}{key}.")
        elif old_value != new_value:
            yield f"{prefix}{key}: {old_value!r} -> {new_value!r}"
