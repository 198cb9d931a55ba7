"""Read recipes, which are TOML files, merge them, and validate them as frozen dataclasses.

A value comes from the last of these sources that sets it: the dataclass's default, the recipe that this one `extends`,
this recipe, and `-s section.key=value`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import re
import tomllib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, cast

import tomli_w
from annotated_types import Ge, Gt, Lt

from albert_cli.errors import ConfigError
from albert_cli.formatting import suggest
from albert_cli.recipe_errors import translate_validation_error, type_at, types_of_keys

if TYPE_CHECKING:
    from pydantic import BaseModel

T = TypeVar("T")
RecipeValues: TypeAlias = dict[str, Any]  # the nested dictionaries of a TOML file, before validation

# Types of a recipe's numbers; pydantic checks the bounds and states them in its messages.
PositiveInt = Annotated[int, Ge(1), Lt(2**62)]
NonNegativeInt = Annotated[int, Ge(0), Lt(2**62)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # such as a dropout rate
PositiveFraction = Annotated[float, Gt(0), Lt(1)]
_TEXT_TYPES = (str, str | None)
_TOML_HINT = 'write a line as key = 1 or key = "text", and the name of a section in brackets, such as [train]'
EXPERIMENT_DEFAULTS = "experiments/common"  # the values that experiments extend, which are no recipe by themselves
_PACKAGE = Path(__file__).parent
# An installed package contains the recipes; in a checkout they are next to the package.
RECIPES_DIR = _PACKAGE / "recipes" if (_PACKAGE / "recipes").is_dir() else _PACKAGE.parent / "recipes"
# A recipe that sets the first key of a pair removes the second key, which it may have inherited. Otherwise it would
# have both: `epochs` with `total_steps` is an error, and `warmup_steps` takes precedence over `warmup_ratio`.
EXCLUSIVE_KEYS = {"epochs": "total_steps", "total_steps": "epochs", "warmup_ratio": "warmup_steps"}


# ---------------------------------------------------------------- finding and reading


@functools.cache
def shipped_recipes() -> Mapping[str, Path]:
    """Return the files of all shipped recipes by name, such as `mini/docs` or `pretrain/albert-base`."""
    return {p.relative_to(RECIPES_DIR).with_suffix("").as_posix(): p for p in sorted(RECIPES_DIR.rglob("*.toml"))}


def is_recipe_file(name: str) -> bool:
    """Return True if the name of a recipe is the path of a TOML file, which need not exist."""
    return name.lower().endswith(".toml")


def find_recipe(name: str, folder: Path = Path()) -> Path:
    """Return the file of a recipe.

    name: the path of a TOML file, or the name of a shipped recipe: in full (`pretrain/albert-base`), or only the last
    part (`albert-base`). Raises `ConfigError` if there is no such recipe, or more than one; its hint suggests a file in
    `folder` with a similar name.
    """
    if is_recipe_file(name):
        if Path(name).is_file():
            return Path(name)
        raise ConfigError(f"{name}: no such recipe file", _suggest_shipped(name))
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    matches = [full_name for full_name in shipped if full_name.rsplit("/", 1)[-1] == name]
    if len(matches) == 1:
        return shipped[matches[0]]
    if matches:
        raise ConfigError(f"recipe {name!r} is ambiguous", f"write one of {', '.join(matches)}")
    path = folder / name
    hint = _suggest_shipped(name)
    # `lexists` accepts a name that is too long for a file.
    if name and os.path.lexists(f"{path}.toml"):
        hint = f"did you mean {name + '.toml'!r}?"
    elif name and os.path.lexists(path):
        raise _not_a_recipe(name, path, hint)
    raise ConfigError(f"no recipe is called {name!r}", hint)


def _suggest_shipped(name: str) -> str:
    """Return the hint for a name that is no recipe's, which may be the path of a shipped recipe in a checkout."""
    hint = suggest(re.sub(r"^recipes/|\.toml$", "", name, flags=re.IGNORECASE), shipped_recipes())
    return hint or "`albert recipes list` lists the shipped recipes"


def _not_a_recipe(name: str, path: Path, hint: str) -> ConfigError:
    """Return the error for a recipe's name that is the path of a directory, or of a file with another ending.

    hint: the remedy if there is no special one.
    """
    if path.is_dir():
        if (path / "recipe.toml").is_file():
            hint = f"use the recipe of this run, {Path(name) / 'recipe.toml'}"
        return ConfigError(f"{name}: is a directory and no recipe: the name of a recipe's file ends in .toml", hint)
    if path.suffix.lower() in (".json", ".yaml", ".yml"):
        return ConfigError(f"{name}: is no recipe: recipes are TOML and end in .toml", "write the settings as TOML")
    if path.is_file():
        hint = "rename the file"
    return ConfigError(f"{name}: is no recipe: the name of a recipe's file ends in .toml", hint)


def read_recipe(name: str, *children: Path) -> RecipeValues:
    """Read a recipe as nested dictionaries, merged over the recipe that it `extends`.

    children: the recipes that extend this one, for the recursion. Raises `ConfigError` if the file is no recipe.
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


def find_shipped_folder(name: str) -> str | None:
    """Return the folder of a shipped recipe, or of the first shipped recipe that a file `extends`; None without one.

    name: as in `read_recipe`, which detects a circle of `extends`.
    """
    path = find_recipe(name)
    folder = RECIPES_DIR.resolve()
    while not path.resolve().is_relative_to(folder):
        parent = _read_toml(path).get("extends")
        if parent is None:
            return None
        path = _find_parent(path, parent)
    return path.resolve().relative_to(folder).parts[0]


@functools.lru_cache(maxsize=256)  # the plan of an experiment reads a recipe for each of its stages
def _parse_toml(text: str) -> RecipeValues:
    """Parse TOML; the caller must not change the result."""
    return tomllib.loads(text)


def _read_toml(path: Path) -> RecipeValues:
    """Parse a TOML file; raise `ConfigError` if it is invalid or sets no value."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors on Windows write a BOM
        values = to_toml_values(_parse_toml(text))  # a copy of all levels
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid UTF-8 (byte {error.start})") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", _TOML_HINT) from None
    if _is_empty(values):  # without this check, a truncated file would train a model with the default settings
        raise ConfigError(f"{path}: sets nothing", "restore it, or write one: `albert recipes copy NAME`")
    return values


def _is_empty(values: Mapping[str, object]) -> bool:
    """Return True if nested dictionaries contain no value."""
    return all(isinstance(value, Mapping) and _is_empty(value) for value in values.values())


def _find_parent(path: Path, parent: str) -> Path:
    """Return the file of the recipe that the recipe in the file `path` extends.

    parent: the value of `extends`, which is a path relative to the folder of `path`, or a name as in `find_recipe`.
    """
    sibling = path.parent / parent
    if is_recipe_file(parent) and sibling.is_file():
        return sibling
    try:
        return find_recipe(parent, path.parent)
    except ConfigError as error:
        raise ConfigError(f"{path}: extends: {error.message}", error.hint) from None


def merge_values(base: Mapping[str, object], over: Mapping[str, object]) -> RecipeValues:
    """Merge nested dictionaries; where both have a key, the value of `over` counts.

    A key of `over` also removes the key of `base` that excludes it (see `EXCLUSIVE_KEYS`).
    """
    excluded = {EXCLUSIVE_KEYS[key] for key in over if key in EXCLUSIVE_KEYS}
    merged = {key: value for key, value in base.items() if key not in excluded}
    for key, value in over.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_values(old, value)
        else:
            merged[key] = value
    return merged


def parse_override(text: str, schema: object = None) -> dict[str, object]:
    """Parse one `-s section.key=value` into a nested dictionary.

    A value that is not valid TOML is a string, so a string needs no quotes. schema: the recipe's dataclass. If its type
    of the key is text, a number or a date remains as typed, such as the name of a column. Raises `ConfigError` if there
    is no key or no equals sign, or if the value sets further keys.
    """
    full_key, equals, value_text = text.partition("=")
    keys = [key.strip() for key in full_key.split(".")]
    if not equals or not all(keys):
        raise ConfigError(f"-s {text}: expected section.key=value", "for example -s optimizer.lr=1e-3")
    try:
        value_text.encode()
    except UnicodeEncodeError:  # of bytes in the command line that are no UTF-8, which TOML needs
        raise ConfigError(f"-s {full_key}=…: the value is not valid UTF-8", "rename the file or directory") from None
    expected = type_at(schema, keys)
    values: dict[str, object]
    try:
        values = tomllib.loads(f"value = {value_text}", parse_float=str if expected == tuple[str, ...] else float)
    except (ValueError, RecursionError):
        values = {"value": value_text.strip()}
    if len(values) > 1:
        raise ConfigError(f"-s {full_key}=…: the value has further lines that set something", "use -s once per key")
    value = values["value"]
    if expected in _TEXT_TYPES and not isinstance(value, str | list | dict):
        value = value_text.strip()
    nested = {keys[-1]: _keep_text(expected, value)}
    for key in reversed(keys[:-1]):
        nested = {key: nested}
    return nested


def flatten_override(override: str) -> dict[str, object]:
    """Return the values that an override sets, by full key; `data={seed=1}` and `data.seed=1` both set `data.seed`."""
    return flatten_values(parse_override(override))


def flatten_values(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return the values of nested dictionaries by full key, such as `train.seed`; every key begins with `prefix`."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten_values(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def apply_overrides(values: Mapping[str, object], overrides: Sequence[str], schema: object = None) -> RecipeValues:
    """Return a recipe's values with every override `section.key=value` of `-s`; the last one for a key counts.

    schema: the recipe's dataclass, for keys whose values are texts (`parse_override`).
    """
    over: dict[str, object] = {}
    for text in overrides:
        over = merge_values(over, parse_override(text, schema))
    return merge_values(values, over)


def _keep_text(expected: object, value: object) -> object:
    """Return an override's value, with numbers, bools and dates as text where `expected`, its type, is text."""
    if isinstance(value, Mapping):
        types = types_of_keys(expected)
        return {key: _keep_text(types.get(key), inner) for key, inner in value.items()}
    if isinstance(value, list) and expected == tuple[str, ...]:
        return [_keep_text(str, item) for item in value]
    if expected in _TEXT_TYPES and not isinstance(value, str | list):
        return json.dumps(value) if isinstance(value, int | float) else str(value)  # a bool is an int
    return value


def read_description(path: Path) -> str:
    """Return the first sentence of a recipe's first comment."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8-sig").splitlines())
    comment = " ".join(line.strip("# ") for line in lines)
    return re.split(r"(?<=\.) +(?=[A-Z])", comment)[0]


# ---------------------------------------------------------------- validation


def load_recipe(schema: type[T], recipe: str | Mapping[str, object], overrides: Sequence[str] = ()) -> T:
    """Return a recipe, with the overrides of `-s`, as an instance of the frozen dataclass `schema`.

    recipe: a name or path as in `find_recipe`, or the values themselves. Raises `ConfigError` for an unknown key or a
    wrong value.
    """
    if isinstance(recipe, str):
        values = apply_overrides(read_recipe(recipe), overrides, schema)
        return validate_recipe(schema, values, recipe, overrides=overrides)
    return validate_recipe(schema, apply_overrides(recipe, overrides, schema), "recipe", overrides=overrides)


def validate_recipe(
    schema: type[T], values: Mapping[str, object], origin: str, section: str = "", overrides: Sequence[str] = ()
) -> T:
    """Convert nested dictionaries to the dataclass `schema`; raise `ConfigError` for an unknown key or a wrong type.

    origin: the recipe's name, which begins the message of the error. section: the section of the recipe that the values
    are from, "" for the whole recipe. overrides: those that `values` include; the message begins with one of them if it
    has set the key that is wrong.
    """
    from pydantic import ValidationError

    # In JSON mode, pydantic's strict rules accept an integer as a float and a list as a tuple, as TOML needs, and
    # still reject the string "12" as a number.
    text = json.dumps({"recipe": values}, default=str)
    try:
        model = _recipe_model(cast(Hashable, schema)).model_validate_json(text)
    except ValidationError as error:
        problem = translate_validation_error(schema, error, section)
    except ConfigError as error:  # of the dataclass's own checks
        problem = error
    else:
        return cast(T, model.recipe)  # type: ignore[attr-defined]
    for override in overrides:  # the last one for a key counts
        if any(re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", problem.message) for key in flatten_override(override)):
            origin = f"-s {override}"
    raise ConfigError(f"{origin}: {problem.message}", problem.hint)


def check_sections(
    schema: type[object], values: Mapping[str, object], origin: str, overrides: Sequence[str] = ()
) -> None:
    """Raise `ConfigError` if a section of a recipe is another value, before code reads keys of sections.

    The arguments are those of `validate_recipe`, which checks the keys in the sections too.
    """
    outside_sections = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    validate_recipe(schema, outside_sections, origin, overrides=overrides)


@functools.cache
def _recipe_model(schema: Hashable) -> type[BaseModel]:
    """Build a strict pydantic model with the dataclass `schema` as its only field, `recipe`.

    pydantic takes these settings from a model only, and applies them to the dataclass and to the dataclasses in it.
    """
    from pydantic import ConfigDict, create_model

    settings = ConfigDict(strict=True, extra="forbid")
    return create_model("Recipe", __config__=settings, recipe=(cast(type[object], schema), ...))


# ---------------------------------------------------------------- writing


def to_toml_values(settings: object) -> RecipeValues:
    """Convert a dataclass or mapping to nested dictionaries of TOML's types; keys whose value is None are omitted."""
    return dict(cast(Mapping[str, object], _to_toml_value(settings)))


def _to_toml_value(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # an instance, not the class
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _to_toml_value(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_to_toml_value(inner) for inner in value]
    return value


def dump_toml(settings: object) -> str:
    """Return a recipe, a dataclass or its values, as the text of a TOML file."""
    return tomli_w.dumps(to_toml_values(settings), indent=2)


def list_differences(old: Mapping[str, object], new: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield a line `section.key: old -> new` for each difference between two recipes.

    prefix: the sections around the values, such as "train.", for the recursion.
    """
    for key in sorted({*old, *new}):
        old_value = old.get(key)
        new_value = new.get(key)
        if isinstance(old_value, Mapping) and isinstance(new_value, Mapping):
            yield from list_differences(old_value, new_value, f"{prefix}{key}.")
        elif old_value != new_value:
            yield f"{prefix}{key}: {old_value!r} -> {new_value!r}"
