"""The settings of a sentence-transformers model are read from the files of old and new versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from albert_cli.errors import CheckpointError
from albert_cli.inference.sentence_modules import SentenceSettings, read_sentence_settings
from tests.helpers.hugging_face import write_modules


@pytest.mark.parametrize(
    ("values", "pooling"),
    [
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls+max"),
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({"pooling_mode": ["mean", "max"]}, "mean+max"),
        ({}, None),
    ],
)
def test_read_sentence_settings_names_the_pooling(
    values: dict[str, object], pooling: str | None, tmp_path: Path
) -> None:
    write_modules(tmp_path, values, "Dense", "Normalize")
    assert read_sentence_settings(tmp_path) == SentenceSettings(pooling, 12, ("Dense",))


def test_read_sentence_settings_length_of_the_tokenizer(tmp_path: Path) -> None:
    """Since version 6, only tokenizer_config.json has the limit."""
    write_modules(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": None}))
    assert read_sentence_settings(tmp_path).max_length is None
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 48}))
    assert read_sentence_settings(tmp_path).max_length == 48


@pytest.mark.parametrize(
    ("prompts", "prompt"),
    [
        ({"prompts": {"query": "ask: "}, "default_prompt_name": "query"}, "ask: "),
        ({"prompts": {"query": "ask: "}, "default_prompt_name": None}, ""),
        ({"prompts": {"query": "ask: "}, "default_prompt_name": "document"}, ""),
        ({"prompts": {"query": None}, "default_prompt_name": "query"}, ""),
        ({}, ""),
    ],
)
def test_read_sentence_settings_of_the_texts(prompts: dict[str, object], prompt: str, tmp_path: Path) -> None:
    write_modules(tmp_path, {"pooling_mode": "mean", "include_prompt": False}, lowercase=True)
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    settings = read_sentence_settings(tmp_path)
    pooling = "mean without the prompt" if prompt else "mean"
    assert (settings.prompt, settings.lowercase, settings.pooling) == (prompt, True, pooling)


def test_read_sentence_settings_of_another_model_are_empty(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 48}))
    assert read_sentence_settings(tmp_path) == SentenceSettings()


def test_read_sentence_settings_damaged_list_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        read_sentence_settings(tmp_path)


@pytest.mark.parametrize("folder", ["../elsewhere", "/elsewhere"])
def test_read_sentence_settings_folder_outside_is_an_error(folder: str, tmp_path: Path) -> None:
    modules = [{"path": "", "type": "models.Transformer"}, {"path": folder, "type": "models.Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="leads out of this directory"):
        read_sentence_settings(tmp_path)
