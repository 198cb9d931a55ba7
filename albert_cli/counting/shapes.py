"""Find the shape of a name: a preset, recipe, checkpoint directory, run or Hub id, optionally with changed values.

`albert-base:E=64,sharing=none` is a preset with two changed values; the symbols are the paper's (§3.1).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from albert_cli import config as recipes
from albert_cli import hub_access, store
from albert_cli.errors import ConfigError
from albert_cli.model.config import PRESETS, ModelConfig

SYMBOLS: Final = {
    "V": "vocab_size",
    "E": "embedding_size",
    "H": "hidden_size",
    "L": "num_hidden_layers",
    "A": "num_attention_heads",
    "F": "intermediate_size",
    "G": "num_hidden_groups",
}
_CHANGED = re.compile(r"(?P<name>.+?):(?P<changes>\w+=.*)", re.DOTALL)


@dataclass(frozen=True)
class Shape:
    """A model's shape and its source; the vocabulary size is assumed if a recipe leaves it to the data."""

    name: str
    config: ModelConfig
    source: Literal["preset", "recipe", "checkpoint", "hub"]
    vocab_size_assumed: bool = False


def find_shape(name: str, overrides: Sequence[str] = ()) -> Shape:
    """Return the shape of a name, changed by `-s model.KEY=VALUE`.

    Raises ConfigError for an unknown name, an impossible shape or a fine-tuning recipe, CheckpointError for a
    directory or Hub repository without a usable config.json.
    """
    plain, changes = _split_changes(name)
    changes = {**changes, **_model_section(overrides)}

    def changed(config: ModelConfig, source: Literal["preset", "checkpoint", "hub"]) -> Shape:
        return Shape(name, ModelConfig.from_values({**asdict(config), **changes}, name) if changes else config, source)

    preset = PRESETS.get(plain.removesuffix("-v2"))  # the ALBERT presets are version 2
    if preset is not None and (plain in PRESETS or plain.startswith("albert-")):
        return changed(preset, "preset")
    path = Path(plain)
    shipped = recipes.shipped_recipes()
    if plain and (path.is_dir() or path.name == "config.json"):
        directory = path if path.is_dir() else path.parent
        if not (directory / "config.json").exists() and (steps := store.saved_steps(directory)):
            directory = steps[-1]
        return changed(ModelConfig.read(directory / "config.json"), "checkpoint")
    if plain.endswith(".toml") or any(plain in (full, full.rsplit("/", 1)[-1]) for full in shipped):
        recipe = recipes.read_recipe(plain)
        hint = "name a pretraining recipe, a preset or a checkpoint directory"
        section = recipe.get("model")
        if "task" in recipe:
            raise ConfigError(f"{plain}: a fine-tuning recipe has no shape, its checkpoint has", hint)
        if not isinstance(section, dict):
            raise ConfigError(f"{plain}: no [model] section to count", hint)
        section = {**section, **changes}
        return Shape(name, ModelConfig.from_values(section, name), "recipe", "vocab_size" not in section)
    is_recipe_folder = any(full.startswith(f"{plain.partition('/')[0]}/") for full in shipped)
    if re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", plain) and not is_recipe_folder:
        file = hub_access.download_hub_files(plain, ["config.json"]) / "config.json"
        return changed(ModelConfig.from_hf(store.read_json(file), f"{plain}/config.json"), "hub")
    raise ConfigError(
        f"{plain}: neither a preset, a recipe, a checkpoint directory nor a Hub id",
        recipes.suggest(plain, [*PRESETS, *shipped])
        or f"presets: {', '.join(PRESETS)}; `albert recipes list` names the recipes; a Hub id is owner/name",
    )


def _split_changes(name: str) -> tuple[str, dict[str, object]]:
    """Split `NAME:KEY=VALUE,…` into the name and its changes."""
    match = _CHANGED.fullmatch(name)
    if match is None or Path(name).exists():
        return name, {}
    changes: dict[str, object] = {}
    for part in re.split(r",(?![^\[]*\])", match["changes"]):  # but not at commas within a list
        key, equals, _ = part.partition("=")
        if not equals:
            raise ConfigError(f"{name}: expected KEY=VALUE, not {part!r}", "for example albert-base:E=64,sharing=none")
        symbol = SYMBOLS.get(key.strip())
        changes.update(recipes.parse_override(part if symbol is None else symbol + part[len(key) :]))
    return match["name"], changes


def _model_section(overrides: Sequence[str]) -> dict[str, object]:
    """Return the [model] values of `-s` overrides; raise `ConfigError` for other sections."""
    values = recipes.apply_overrides({}, overrides)
    section = values.pop("model", {})
    if values or not isinstance(section, dict):
        key = next(iter(values), "model")
        raise ConfigError(f"-s {key}…: only the [model] section has a shape", "for example -s model.embedding_size=64")
    return section
