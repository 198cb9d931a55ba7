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
from typing import Annotated, Any, TypeVar, cast

from annotated_types import Ge, Gt, Lt

from albert_cli import store
from albert_cli.errors import ConfigError

T = TypeVar("T")

# What numbers of a recipe may be; pydantic says so in its message.
PositiveInt = Annotated[int, Ge(1), Lt(2**62)]
NonNegativeInt = Annotated[int, Ge(0), Lt(2**62)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # such as a dropout rate
PositiveFraction = Annotated[float, Gt(0), Lt(1)]
_PACKAGE = Path(__file__).parent
# Installed, the recipes lie inside the package; in a checkout, beside it.
RECIPES_DIR = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "recipes"


# ---------------------------------------------------------------- finding and reading


@functools.cache
def shipped_recipes() -> Mapping[str, Path]:
    """All recipes that come with the program: `mini/docs`, `pretrain/albert-base`, … to their files."""
    return {p.relative_to(RECIPES_DIR).with_suffix("").as_posix(): p for p in sorted(RECIPES_DIR.rglob("*.toml"))}


def find_recipe(name: str) -> Path:
    """A recipe's file, given as a path, a full name (`pretrain/albert-base`) or its last part; raises `ConfigError`."""
    if name.endswith(".toml"):
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(f"{name}: no such recipe file", "`albert recipes list` names those that are shipped")
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    matches = [full for full in shipped if full.rsplit("/", 1)[-1] == name]
    if len(matches) == 1:
        return shipped[matches[0]]
    if matches:
        raise ConfigError(f"recipe {name!r} is ambiguous", f"write one of {', '.join(matches)}")
    raise ConfigError(f"no recipe is called {name!r}", suggest(name, shipped) or "`albert recipes list` names them")


def suggest(word: str, known: Sequence[str] | Mapping[str, Any]) -> str | None:
    """A "did you mean" line, or None when nothing is near."""
    names = {**{full.rsplit("/", 1)[-1]: full for full in known}, **{full: full for full in known}}
    near = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f"did you mean {names[near[0]]!r}?" if near else None


def read_recipe(name: str, *seen: Path) -> dict[str, Any]:
    """A recipe as nested dictionaries, with the recipes that it `extends` merged underneath; none of them `seen`."""
    path = find_recipe(name)
    if path.resolve() in seen:
        raise ConfigError(f"{path}: `extends` goes round in a circle")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    if _sets_nothing(values):  # what is left of a file that was cut would train a model of the defaults
        raise ConfigError(f"{path}: sets nothing", "restore it, or write one: `albert recipes copy NAME`")
    parent = values.pop("extends", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise ConfigError(f'{path}: extends must be the name of a recipe, such as extends = "albert-base"')
    beside = path.parent / parent
    try:
        found = beside if parent.endswith(".toml") and beside.is_file() else find_recipe(parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: extends: {error.message}", error.hint) from None
    return merge_values(read_recipe(str(found), *seen, path.resolve()), values)


def _sets_nothing(values: Mapping[str, Any]) -> bool:
    return all(isinstance(value, Mapping) and _sets_nothing(value) for value in values.values())


# Two ways of saying one thing: the key, laid on a recipe, takes the place of the other one that stands there.
EXCLUSIVE_KEYS = {"epochs": "total_steps", "total_steps": "epochs", "warmup_ratio": "warmup_steps"}


def merge_values(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, section by section."""
    replaced = {EXCLUSIVE_KEYS[key] for key in over if key in EXCLUSIVE_KEYS}
    merged = {key: value for key, value in base.items() if key not in replaced}
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge_values(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def parse_override(text: str) -> dict[str, Any]:
    """One `-s section.key=value` as a nested dictionary; the value is TOML, or a bare string."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"-s {text}: expected section.key=value", "for example -s optimizer.lr=1e-3")
    try:
        leaf: Any = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        leaf = value.strip()
    for part in reversed(parts):
        leaf = {part: leaf}
    return dict(leaf)


def apply_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A recipe's values with every `-s section.key=value` laid on them; of one key the last counts."""
    over: dict[str, Any] = {}
    for text in overrides:
        over = merge_values(over, parse_override(text))
    return merge_values(values, over)


# ---------------------------------------------------------------- validation


def load_recipe(schema: type[T], recipe: str | Mapping[str, Any], overrides: Sequence[str] = ()) -> T:
    """Read a recipe (a name, a path, or values) with overrides into a frozen dataclass; raises `ConfigError`."""
    values = apply_overrides(read_recipe(recipe) if isinstance(recipe, str) else recipe, overrides)
    return validate_recipe(schema, values, recipe if isinstance(recipe, str) else "recipe")


def validate_recipe(schema: type[T], values: Mapping[str, Any], origin: str) -> T:
    """Check nested dictionaries against a dataclass: strict types, no unknown keys."""
    from pydantic import ValidationError

    reject_unknown_keys(schema, values, origin)
    with prefix_errors(origin):
        try:
            # JSON mode lets TOML's integers be floats and its arrays tuples, and strictness still refuses "12" for 12.
            return store.type_adapter(schema).validate_json(json.dumps(values, default=str), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"][:2])  # what follows names a union's member or an index
            got = "" if first["type"] == "missing" else f" (got {first['input']!r})"
            raise ConfigError(f"{key}: {first['msg']}{got}") from None


@contextmanager
def prefix_errors(origin: str) -> Iterator[None]:
    """Let a `ConfigError` begin with the recipe that it is about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error.message}", error.hint) from None


_type_hints = functools.cache(typing.get_type_hints)  # which compiles every annotation anew


def reject_unknown_keys(schema: type[Any], values: Mapping[str, Any], origin: str, prefix: str = "") -> None:
    """Raise `ConfigError` for a key that the dataclass, or one in it, does not have, with the nearest that it has."""
    hints = _type_hints(cast(Hashable, schema))
    for key, value in values.items():
        if key not in hints:
            sections = [name for name, t in hints.items() if isinstance(t, type) and dataclasses.is_dataclass(t)]
            there = [f"{name}.{key}" for name in sections if key in _type_hints(hints[name])]
            meant = f"did you mean {' or '.join(there)}?" if there else None
            raise ConfigError(
                f"{origin}: unknown key {prefix + key!r}",
                meant or suggest(key, list(hints)) or f"known keys: {', '.join(hints)}",
            )
        section = next((t for t in (hints[key], *typing.get_args(hints[key])) if dataclasses.is_dataclass(t)), None)
        inside = [(key, inner) for inner in (value if isinstance(value, list | tuple) else [value])]
        if typing.get_origin(hints[key]) is dict and isinstance(value, Mapping):  # sections named by the recipe
            inside = [(f"{key}.{name}", inner) for name, inner in value.items()]
        for place, inner in inside:
            if isinstance(section, type) and isinstance(inner, Mapping):
                reject_unknown_keys(section, inner, origin, f"{prefix}{place}.")


# ---------------------------------------------------------------- writing


def to_toml_values(settings: Any) -> dict[str, Any]:
    """A dataclass, or a mapping, as TOML's own types: nested dictionaries and lists, without values that are None."""
    return dict(_to_toml_value(settings))


def _to_toml_value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {key: _to_toml_value(v) for key, v in value.items() if v is not None}
    return [_to_toml_value(v) for v in value] if isinstance(value, list | tuple) else value


def default_values(schema: type[Any]) -> dict[str, Any]:
    """The defaults of a dataclass, as `as_dict` writes them: every field that has a default which is not None."""
    made = {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(schema)
    }
    return to_toml_values({name: value for name, value in made.items() if value is not dataclasses.MISSING})


def dump_toml(settings: Any) -> str:
    """The resolved recipe as TOML: plain keys first, then one section a table; lists on one line."""
    return "\n".join(_table("", to_toml_values(settings))).strip() + "\n"


def _table(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    """A table with its header, then the tables in it."""
    inner = [key for key, value in values.items() if isinstance(value, dict)]
    if name and (len(inner) < len(values) or not values):
        yield from ("", f"[{name}]")
    # JSON's booleans, strings and lists are TOML's, but TOML wants one more character escaped, and calls infinity inf.
    for key in values:
        if key not in inner:
            value = values[key]
            text = repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
            yield f"{key} = {text}".replace("\x7f", "\\u007f")
    for key in inner:
        yield from _table(f"{name}.{key}" if name else key, values[key])


def list_differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Lines `section.key: old -> new` for all that differs between two recipes."""
    for key in sorted({*old, *new}):
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            yield from list_differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}: {before!r} -> {after!r}"


def read_description(path: Path) -> str:
    """The first sentence of a recipe's first comment: what it is."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8").splitlines())
    return re.split(r"(?<=\.) +(?=[A-Z])", " ".join(line.strip("# ") for line in lines))[0]
