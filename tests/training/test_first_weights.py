"""Tests of runs with `[init]`: initial weights are saved, and depend on neither interruptions nor ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from albert_cli import store
from albert_cli.errors import ConfigError
from albert_cli.model import hub, loading
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.training.pretrain import pretrain
from tests.helpers.processes import end, start_ranks

LAST = "step-00000010"
OVERRIDES = [
    "init.words=cooccurrence", "init.neighbors=[-1]", "init.value_output_scale=0.7",
    "model.embedding_size=32", "model.hidden_size=32", "model.always_project=true",
    "schedule.total_steps=10", "train.precision=fp32",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path) -> Path:
    out = tmp_path_factory.mktemp("init") / "run"
    pretrain(str(recipe), tiny_data, out, OVERRIDES, device="cpu")
    return out


def test_init_is_saved_as_checkpoint(run: Path) -> None:
    store.verify(run / "init", "checkpoint")
    first, last = (hub.read_checkpoint(run / name).tensors for name in ("init", LAST))
    word = "encoder.embeddings.word.weight"
    assert first.keys() == last.keys()
    assert not torch.equal(first[word], last[word])
    assert not first[word][:, -4:].any(), "these dimensions are for positions"
    assert hub.find_checkpoint(str(run)) == run / LAST


def test_init_run_resumes_to_same_bytes(run: Path, recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    expected = [store.sha256_file(run / name / WEIGHTS_FILE) for name in ("init", LAST)]
    for saved_steps in ([], [5]):
        resumed = Path(shutil.copytree(run, tmp_path / f"saved-{len(saved_steps)}"))
        for step in resumed.glob("step-*"):
            if int(step.name[5:]) not in saved_steps:
                shutil.rmtree(step)
        pretrain(str(recipe), tiny_data, resumed, OVERRIDES, device="cpu")
        assert [store.sha256_file(resumed / name / WEIGHTS_FILE) for name in ("init", LAST)] == expected


def test_init_is_same_on_two_ranks(run: Path, recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    settings = [word for override in OVERRIDES for word in ("-s", override)]
    command = ("pretrain", recipe, "--data", tiny_data, "--device", "cpu", "--out", tmp_path / "two")
    assert end(start_ranks(tmp_path / "log", 2, *command, *settings)) == [0, 0]
    expected, actual = (hub.read_checkpoint(directory / LAST).tensors for directory in (run, tmp_path / "two"))
    assert all(torch.allclose(tensor, actual[name], atol=1e-4) for name, tensor in expected.items())


def test_init_transformers_computes_same_logits(run: Path) -> None:
    from transformers import AutoModelForPreTraining

    from albert_cli.model.heads import PretrainingModel
    from albert_cli.model.packing import pack
    from tests.helpers.shapes import random_batch

    for directory in (run / "init", run / LAST):
        theirs, info = AutoModelForPreTraining.from_pretrained(directory, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
        checkpoint = hub.read_checkpoint(directory)
        ours = PretrainingModel(checkpoint.config)
        loading.load_weights(ours, checkpoint, loading.LoadPolicy.EVERYTHING)
        batch = random_batch((20,))
        ids = torch.from_numpy(batch.ids).long()[None]
        with torch.no_grad():
            logits = ours.eval()(pack(batch, torch.device("cpu"), batch.masked_index)).masked
            expected = theirs.eval()(ids, token_type_ids=torch.from_numpy(batch.segment_ids).long()[None])
        assert torch.allclose(logits, expected.prediction_logits[0, batch.masked_index.tolist()], atol=1e-4)


def test_init_too_many_heads_raise_before_writing(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes 3 attention heads, the model has 2"):
        pretrain(str(recipe), tiny_data, tmp_path / "no", ["init.neighbors=[-1, 1, 2]"], device="cpu")
    assert not (tmp_path / "no").exists()


def test_new_model_auto_range_grows_with_narrow_width(recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    auto = ['model.initializer_range="auto"', "schedule.total_steps=1", "optimizer.lr=1e-9"]
    result = pretrain(str(recipe), tiny_data, tmp_path / "run", auto, device="cpu")
    assert store.read_json(result.checkpoint / "config.json")["initializer_range"] == pytest.approx(0.1375)
    assert 'initializer_range = "auto"' in (tmp_path / "run" / "recipe.toml").read_text()
