"""Find the shape that a name refers to: a preset, recipe, checkpoint directory, run or Hub id.

A name may change values: `albert-base:E=64,sharing=none` is a preset with two changed values. The symbols, such as E,
are the paper's (§3.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from albert_cli import config as recipes  # in this module, `config` is a model's shape
from albert_cli import hub_access, store
from albert_cli.counting.costs import Precision
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.formatting import suggest
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
_NAME_WITH_CHANGES = re.compile(r"(?P<name>.+?):(?P<changes>\w+=.*)", re.DOTALL)
_COMMA_OUTSIDE_LIST = re.compile(r",(?![^\[]*\])")  # in group_sizes=[1,10,1],E=64 only the comma before E

# ALBERT presets without -v1 in their names are version 2, so the names may end with -v2. BERT has no versions.
_VERSION_2_NAMES: Final = {
    f"{name}-v2": name for name in PRESETS if name.startswith("albert-") and not name.endswith("-v1")
}


@dataclass(frozen=True)
class Shape:
    """A model's shape and its source.

    `vocab_size_assumed`: the name is that of a recipe without a vocabulary size. `config` then has the default size,
    although training would take the size from its data. `precision` is that of the recipe's matmuls; "auto", which is
    bf16 on a GPU, and shapes that are no recipe's have bf16.
    """

    name: str
    config: ModelConfig
    source: Literal["preset", "recipe", "checkpoint", "hub"]
    vocab_size_assumed: bool = False
    precision: Precision = "bf16"


def find_shape(name: str, overrides: Sequence[str] = ()) -> Shape:
    """Return the shape that a name refers to, changed by `overrides` (values of `-s`, such as `model.KEY=VALUE`).

    Raises `ConfigError` for an unknown name, an impossible shape or a fine-tuning recipe, and `CheckpointError` for a
    directory or Hub repository without a usable config.json.
    """
    base_name, changes = _split_changes(name)
    changes = {**changes, **_parse_overrides(overrides)}

    def make_shape(config: ModelConfig, source: Literal["preset", "checkpoint", "hub"]) -> Shape:
        if changes:
            config = ModelConfig.from_values({**asdict(config), **changes}, name)
        return Shape(name, config, source)

    preset = PRESETS.get(_VERSION_2_NAMES.get(base_name, base_name))
    if preset is not None:
        return make_shape(preset, "preset")
    path = Path(base_name)
    is_config_file = path.name == "config.json"
    if is_config_file or (base_name and path.is_dir()):  # an empty path is the current directory, not a name
        directory = path.parent if is_config_file else path
        return make_shape(_read_directory(directory), "checkpoint")
    shipped = recipes.shipped_recipes()
    short_names = {full_name.rsplit("/", 1)[-1] for full_name in shipped}  # pretrain/albert-base without its folder
    if recipes.is_recipe_file(base_name) or base_name in shipped or base_name in short_names:
        recipe = recipes.read_recipe(base_name)
        section = {**_model_section(base_name, recipe), **changes}
        config = ModelConfig.from_values(section, name)
        precision = _precision(recipe)
        return Shape(name, config, "recipe", vocab_size_assumed="vocab_size" not in section, precision=precision)
    # An unknown name in a recipe folder, such as pretrain/albert-bas, is a misspelled recipe and no Hub id.
    recipe_folders = {full_name.split("/", 1)[0] for full_name in shipped if "/" in full_name}
    is_hub_id = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", base_name) is not None
    if is_hub_id and base_name.partition("/")[0] not in recipe_folders:
        file = hub_access.download_hub_files(base_name, ["config.json"]) / "config.json"
        return make_shape(ModelConfig.from_hf(store.read_json(file), f"{base_name}/config.json"), "hub")
    hint = suggest(base_name, [*PRESETS, *shipped])
    if not hint:
        hint = f"presets: {', '.join(PRESETS)}; `albert recipes list` prints the recipes; a Hub id is owner/name"
    raise ConfigError(f"{base_name}: neither a preset, a recipe, a checkpoint directory nor a Hub id", hint)


def _read_directory(directory: Path) -> ModelConfig:
    """Read the shape from a checkpoint directory, or from the newest step of a run."""
    if not (directory / "config.json").exists():
        steps = store.saved_steps(directory)
        if not steps and directory.is_dir():
            from albert_cli.model.weight_files import describe_layout  # imports torch

            content, hint = describe_layout(directory)
            raise CheckpointError(f"{directory}: contains {content}", hint)
        directory = steps[-1] if steps else directory
    return ModelConfig.read(directory / "config.json")


def _precision(recipe: Mapping[str, object]) -> Precision:
    """Return the precision of a recipe's matmuls on a GPU."""
    train = recipe.get("train")
    return "fp32" if isinstance(train, dict) and train.get("precision") == "fp32" else "bf16"


def _model_section(name: str, recipe: Mapping[str, object]) -> dict[str, object]:
    """Return the [model] section of a recipe; raise `ConfigError` if it has none, or fine-tunes on a task."""
    hint = "name a pretraining recipe, a preset or a checkpoint directory"
    if "task" in recipe:
        raise ConfigError(f"{name}: a fine-tuning recipe has no shape; the checkpoint that it fine-tunes has one", hint)
    section = recipe.get("model")
    if not isinstance(section, dict):
        raise ConfigError(f"{name}: has no [model] section", hint)
    return section


def _split_changes(name: str) -> tuple[str, dict[str, object]]:
    """Split `NAME:KEY=VALUE,…` into the name and the changed values, whose keys are fields of `ModelConfig`.

    Raises `ConfigError` for a change without `=`.
    """
    match = _NAME_WITH_CHANGES.fullmatch(name)
    if match is None or Path(name).exists():
        return name, {}
    changes: dict[str, object] = {}
    for change in _COMMA_OUTSIDE_LIST.split(match["changes"]):
        key, equals, value = change.partition("=")
        if not equals:
            raise ConfigError(
                f"{name}: expected KEY=VALUE, not {change!r}", "for example albert-base:E=64,sharing=none"
            )
        full_key = SYMBOLS.get(key.strip(), key)
        changes.update(recipes.parse_override(f"{full_key}={value}"))
    return match["name"], changes


def _parse_overrides(overrides: Sequence[str]) -> dict[str, object]:
    """Parse values of `-s` and return those of the [model] section; raise `ConfigError` for other sections."""
    values = recipes.apply_overrides({}, overrides)
    section = values.pop("model", {})
    if values or not isinstance(section, dict):
        key = next(iter(values), "model")
        raise ConfigError(
            f"-s {key}…: only keys of the [model] section change the shape", "for example -s model.embedding_size=64"
        )
    return section
