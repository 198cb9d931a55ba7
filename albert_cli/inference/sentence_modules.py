"""Read and copy the settings with which sentence-transformers computes a model's vectors, from the files it saves."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator

from albert_cli import store
from albert_cli.text.vocabulary import CONFIG_FILE

_MODULES_FILE: Final = "modules.json"
_TRANSFORMER_FILE: Final = "sentence_bert_config.json"
_PROMPTS_FILE: Final = "config_sentence_transformers.json"
# The modules whose effect albert computes or the settings describe. A normalized vector only has another length.
_KNOWN_MODULES: Final = ("Transformer", "Pooling", "Normalize")
# The keys of pooling modes until version 5 of sentence-transformers, each true or false.
_MODES_BY_KEY: Final = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class SentenceSettings:
    """The settings of a sentence-transformers model.

    pooling: the mode, such as "mean" or "cls+max"; max_length: the number of tokens to which texts are truncated; both
    are None if the files do not have them. further_modules: the classes of modules that change the pooled vectors.
    prompt: is put before each text or pair. lowercase: True if texts are lower-cased before the tokenizer reads them.
    """

    pooling: str | None = None
    max_length: int | None = None
    further_modules: tuple[str, ...] = ()
    prompt: str = ""
    lowercase: bool = False


@dataclass(frozen=True)
class _Module:
    """A module of the list in `modules.json`: its class with the package, and its folder, "" for the model's."""

    type: str
    path: Annotated[str, AfterValidator(store.check_relative)] | Literal[""]


def read_sentence_settings(directory: Path) -> SentenceSettings:
    """Return the settings of the model in a directory, without values if it is none of sentence-transformers."""
    modules = _read_modules(directory)
    if not modules:
        return SentenceSettings()
    folders = {module.type.rpartition(".")[2]: module.path for module in modules}
    prompt = _read_prompt(directory)
    pooling = None
    if "Pooling" in folders:
        values = store.read_json(directory / folders["Pooling"] / "config.json")
        pooling = _pooling_mode(values)
        if prompt and values.get("include_prompt") is False and pooling not in (None, "cls"):
            pooling = f"{pooling} without the prompt"
    return SentenceSettings(
        pooling=pooling,
        max_length=_read_max_length(directory),
        further_modules=tuple(name for name in folders if name not in _KNOWN_MODULES),
        prompt=prompt,
        lowercase=_read_optional_json(directory / _TRANSFORMER_FILE).get("do_lower_case") is True,
    )


def copy_sentence_settings(source: Path, target: Path) -> None:
    """Copy the modules and settings of a model of sentence-transformers; another model has none.

    The tokenizer's file, which may have the limit of tokens, is not copied.
    """
    modules = _read_modules(source)
    for name in (_MODULES_FILE, _TRANSFORMER_FILE, _PROMPTS_FILE):
        if modules and (source / name).is_file():
            store.write_bytes(target / name, store.read_bytes(source / name))
    for folder in {module.path for module in modules if module.path}:
        if (source / folder).is_dir():  # Git has no empty folders, such as that of Normalize
            shutil.copytree(source / folder, target / folder)


def _read_modules(directory: Path) -> list[_Module]:
    """Return a model's modules; none if it is no model of sentence-transformers."""
    path = directory / _MODULES_FILE
    return store.read_record(path, list[_Module]) if path.is_file() else []


def _pooling_mode(values: Mapping[str, object]) -> str | None:
    """Return the mode of the module Pooling; values: the content of its `config.json`."""
    mode = values.get("pooling_mode")
    if isinstance(mode, str):
        return mode
    modes = mode if isinstance(mode, list) else [name for key, name in _MODES_BY_KEY.items() if values.get(key) is True]
    return "+".join(map(str, modes)) or None  # the vectors of several modes are concatenated


def _read_max_length(directory: Path) -> int | None:
    """Return the number of tokens to which sentence-transformers truncates texts, None if no file has it."""
    for name, key in ((_TRANSFORMER_FILE, "max_seq_length"), (CONFIG_FILE, "model_max_length")):
        length = _read_optional_json(directory / name).get(key)
        if isinstance(length, int):
            return length
    return None


def _read_prompt(directory: Path) -> str:
    """Return the prompt that sentence-transformers puts before a text by default, "" if there is none."""
    values = _read_optional_json(directory / _PROMPTS_FILE)
    prompts = values.get("prompts")
    prompt = prompts.get(values.get("default_prompt_name")) if isinstance(prompts, dict) else None
    return prompt if isinstance(prompt, str) else ""


def _read_optional_json(path: Path) -> Mapping[str, object]:
    """Read a JSON object; return an empty one if there is no such file."""
    return store.read_json(path) if path.is_file() else {}
