"""Tests of `[warm_start]`: copied weights, rejected parents, and runs that start from a checkpoint or continue one."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli import journal, store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import checkpoint
from albert_cli.training.checkpoint import StepWindow
from albert_cli.training.first_weights import set_first_weights
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.pretrain import dry_run_pretraining, pretrain
from albert_cli.training.pretrain_inputs import open_inputs
from albert_cli.training.warm_start import WarmStart, copy_parent_weights, load_parent, map_parent_sublayers
from tests.helpers.hugging_face import HEADS, new_of_theirs
from tests.helpers.processes import end, start, start_ranks, terminate_at_step
from tests.helpers.runs import LAST, SHAPE, checkpoint_hashes, copy_run, create_checkpoint
from tests.helpers.shapes import ALBERT_ONLY_SHAPES, HF_SHAPES, TINY, random_batch


def logits(model: PretrainingModel) -> torch.Tensor:
    batch = random_batch((20, 3, 11))
    with torch.no_grad():
        output = model.eval()(pack(batch, torch.device("cpu"), batch.masked_index))
    return torch.cat([output.masked.flatten(), output.sentence_order.flatten()])


def start_from(child: ModelConfig, parent: Path, vocabulary: Path) -> PretrainingModel:
    model = PretrainingModel(child)
    copy_parent_weights(model, load_parent(WarmStart(str(parent)), child, Vocabulary.load(vocabulary)))
    return model


# ---------------------------------------------------------------- copied weights


@pytest.mark.parametrize(
    "groups", [{"num_hidden_groups": 1}, {"num_hidden_groups": 3}, {"num_hidden_groups": 3, "inner_group_num": 2}]
)
def test_copy_parent_deeper_model_repeats_the_shared_layer(
    groups: dict[str, int], tiny_vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shape = replace(SHAPE, **groups)  # type: ignore[arg-type]
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary, shape)
    child = start_from(replace(shape, num_hidden_layers=12), parent, tiny_vocabulary)
    stored = hub.read_checkpoint(parent).tensors
    assert stored.keys() == child.state_dict().keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in child.state_dict().items())
    assert "its encoder, 12 layers from 3, and the heads masked and order" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("inner", "changes"),
    [
        (1, {"num_hidden_groups": 3}),
        (2, {"num_hidden_groups": 3}),
        (1, {"sharing": "none"}),
        (1, {"sharing": "attention"}),
    ],
)
def test_copy_parent_groups_start_from_group_0(
    inner: int, changes: dict[str, Any], tiny_vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shape = replace(SHAPE, inner_group_num=inner)
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary, shape)
    child = start_from(replace(shape, num_hidden_layers=6, **changes), parent, tiny_vocabulary)
    assert torch.allclose(
        logits(child), logits(start_from(replace(shape, num_hidden_layers=6), parent, tiny_vocabulary))
    )
    assert "its encoder, 6 layers from 3, and the heads masked and order" in capfd.readouterr().err


def test_copy_parent_stack_repeats_layers(tiny_vocabulary: Path, tmp_path: Path) -> None:
    shape = replace(SHAPE, sharing="none")
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary, shape)
    twice = replace(shape, num_hidden_layers=6)
    child = PretrainingModel(twice)
    stored = hub.read_checkpoint(parent)
    copy_parent_weights(child, stored, stack=True)
    for name, tensor in child.state_dict().items():
        block = re.match(r"encoder\.(attention|feed_forward)\.(\d)\.", name)
        source = name.replace(f".{block[2]}.", f".{int(block[2]) % 3}.", 1) if block else name
        assert torch.equal(tensor, stored.tensors[source]), name
    with pytest.raises(ConfigError, match="cannot start from one of 3 attention and 3 feed-forward sub-layers"):
        map_parent_sublayers(twice, shape)
    with pytest.raises(ConfigError, match=r"warm_start\.stack requires warm_start\.checkpoint"):
        WarmStart(continues=str(parent), stack=True)


def test_map_parent_sublayers_further_groups_copy_group_0(tiny_vocabulary: Path, tmp_path: Path) -> None:
    parent = create_checkpoint(
        tmp_path / "parent", tiny_vocabulary, replace(SHAPE, num_hidden_layers=4, num_hidden_groups=2)
    )
    child = start_from(replace(SHAPE, num_hidden_layers=6, num_hidden_groups=3), parent, tiny_vocabulary)
    expected = hub.read_checkpoint(parent).tensors["encoder.attention.0.query.weight"]
    assert all(torch.equal(child.state_dict()[f"encoder.attention.{k}.query.weight"], expected) for k in range(3))


@pytest.mark.parametrize("name", HF_SHAPES | ALBERT_ONLY_SHAPES)
def test_copy_parent_same_shape_copies_all(name: str, tiny_vocabulary: Path, tmp_path: Path) -> None:
    shape = replace((HF_SHAPES | ALBERT_ONLY_SHAPES)[name], vocab_size=300)
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary, shape)
    child = start_from(shape, parent, tiny_vocabulary)
    stored = hub.read_checkpoint(parent).tensors
    assert all(torch.equal(tensor, stored[name]) for name, tensor in child.state_dict().items())


def test_copy_parent_hf_model_without_heads(
    tiny_vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new_of_theirs(HEADS["bare"], SHAPE).save_pretrained(tmp_path)
    Vocabulary.load(tiny_vocabulary).copy_to(tmp_path)
    child = start_from(replace(SHAPE, num_hidden_layers=6), tmp_path, tiny_vocabulary)
    word = hub.read_checkpoint(tmp_path).tensors["encoder.embeddings.word.weight"]
    assert torch.equal(child.encoder.embeddings.word.weight, word)
    printed = capfd.readouterr().err
    assert "25 tensors matched: encoder, pooler; new: masked, order" in printed
    assert "6 layers from 3, without a head; the optimizer restarts" in printed


def test_copy_parent_order_head_of_other_classes_is_new(
    tiny_vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary)
    start_from(replace(SHAPE, order_labels=3), parent, tiny_vocabulary)
    assert "3 layers from 3, and the head masked, with a new head order; the optimizer" in capfd.readouterr().err


# ---------------------------------------------------------------- rejected parents


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vocab_size", {"vocab_size": 310}),
        ("embedding_size", {"embedding_size": 4}),
        ("hidden_size", {"hidden_size": 32}),
        ("num_attention_heads", {"num_attention_heads": 2}),
        ("intermediate_size", {"intermediate_size": 32}),
        ("hidden_act", {"hidden_act": "relu"}),
        ("type_vocab_size", {"type_vocab_size": 3}),
        ("layer_norm_eps", {"layer_norm_eps": 1e-6}),
        ("inner_group_num", {"inner_group_num": 2}),
    ],
)
def test_load_parent_other_width_raises(
    name: str, changes: dict[str, Any], tiny_vocabulary: Path, tmp_path: Path
) -> None:
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary)
    child = replace(SHAPE, num_hidden_layers=6, **changes)
    message = f"{name} is {getattr(SHAPE, name)}, the recipe's model has {getattr(child, name)}"
    with pytest.raises(ConfigError, match=message):
        start_from(child, parent, tiny_vocabulary)


def test_load_parent_other_projection_raises(tiny_vocabulary: Path, tmp_path: Path) -> None:
    wide = replace(SHAPE, embedding_size=16)
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary, replace(wide, always_project=True))
    with pytest.raises(ConfigError, match="has_projection is True, the recipe's model has False"):
        start_from(wide, parent, tiny_vocabulary)


DEEP = replace(TINY, num_hidden_layers=6)


@pytest.mark.parametrize(
    ("parent", "child"),
    [
        (replace(TINY, sharing="none"), replace(DEEP, sharing="none")),
        (replace(TINY, num_hidden_groups=3), replace(DEEP, num_hidden_groups=6)),
        (replace(TINY, sharing="attention"), replace(DEEP, sharing="attention")),
        (replace(TINY, sharing="ffn"), replace(TINY, sharing="attention")),
        (replace(DEEP, num_hidden_groups=3), DEEP),
        (replace(TINY, sharing="attention"), TINY),
    ],
)
def test_map_parent_sublayers_unshared_layers_raise(parent: ModelConfig, child: ModelConfig) -> None:
    with pytest.raises(ConfigError, match=r"a model of \d attention and \d feed-forward sub-layers cannot"):
        map_parent_sublayers(child, parent)


def test_load_parent_other_vocabulary_raises(tiny_vocabulary: Path, documents_file: Path, tmp_path: Path) -> None:
    from albert_cli.text import build_vocabulary
    from albert_cli.text.build_vocabulary import VocabularySettings

    other_vocabulary = tmp_path / "other"
    build_vocabulary.build_vocabulary(
        [str(documents_file)], other_vocabulary, VocabularySettings(size=300, seed=1, sample_size=400)
    )
    parent = create_checkpoint(tmp_path / "parent", other_vocabulary)
    with pytest.raises(ConfigError, match=f"has another vocabulary than {parent}"):
        start_from(SHAPE, parent, tiny_vocabulary)


def test_load_parent_other_fingerprint_raises(tiny_vocabulary: Path, tmp_path: Path) -> None:
    parent = create_checkpoint(tmp_path / "parent", tiny_vocabulary)
    fingerprint, vocabulary = store.fingerprint(parent), Vocabulary.load(tiny_vocabulary)
    assert load_parent(WarmStart(str(parent), fingerprint), SHAPE, vocabulary).directory == parent
    with pytest.raises(
        ConfigError, match=rf"is another checkpoint \({fingerprint}\) than warm_start\.fingerprint names \(0123"
    ):
        load_parent(WarmStart(str(parent), "0123"), SHAPE, vocabulary)


# ---------------------------------------------------------------- runs with warm_start.checkpoint


DEEP_LAST = "step-00000010"


def overrides(parent: Path, *more: str) -> Sequence[str]:
    return (f"warm_start.checkpoint={parent}", "model.num_hidden_layers=4", "schedule.total_steps=10", *more)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path, finished: Path) -> Path:
    """A run of ten steps and four layers that started from the finished run of two; tests must not change it."""
    out = tmp_path_factory.mktemp("deep") / "out"
    pretrain(str(recipe), tiny_data, out, overrides(finished), device="cpu")
    return out


def test_warm_start_run_records_its_parent(deep: Path, finished: Path) -> None:
    fingerprint = store.fingerprint(finished / LAST)
    recorded_settings = tomllib.loads((deep / "recipe.toml").read_text())["warm_start"]
    assert recorded_settings == {
        "checkpoint": str(finished),
        "fingerprint": fingerprint,
        "positions": "tile",
        "stack": False,
    }
    for step in deep.glob("step-*"):
        manifest = store.verify(step, "checkpoint")
        assert manifest.parents["warm_start"] == fingerprint
    losses = [journal.read_journal(run / "metrics.jsonl")[0]["mlm_loss"] for run in (deep, finished)]
    assert losses[0] < losses[1] - 0.05, "the first logged loss is that of weights that have learned something"


def test_warm_start_replaces_init(recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path) -> None:
    settings = [f"warm_start.checkpoint={finished}", "init.neighbors=[-1]"]
    settings += ["optimizer.lr=1e-9", "schedule.total_steps=1"]
    pretrain(str(recipe), tiny_data, tmp_path / "run", settings, device="cpu")
    assert tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["init"]["neighbors"] == []
    assert not (tmp_path / "run" / "init").exists()
    name = "encoder.attention.0.key.weight"
    checkpoints = (finished / LAST, tmp_path / "run" / "step-00000001")
    expected, actual = (hub.read_checkpoint(checkpoint).tensors[name] for checkpoint in checkpoints)
    assert torch.allclose(actual, expected, atol=1e-6)


def test_warm_start_reports_unused_masked_bias(
    recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [f"warm_start.checkpoint={finished}", "masked_bias=unigram", "init.neighbors=[-1]"]
    settings.append("schedule.total_steps=1")
    pretrain(str(recipe), tiny_data, tmp_path / "run", settings, device="cpu")
    assert f"starts from {finished / LAST}, so init and masked_bias are not used" in capfd.readouterr().err
    assert tomllib.loads((tmp_path / "run" / "recipe.toml").read_text())["masked_bias"] == "zero"
    pretrain(str(recipe), tiny_data, tmp_path / "run", settings, device="cpu")  # resumes with the same recipe


@pytest.mark.parametrize("fault", ["missing", "replaced"])
def test_warm_start_resumes_without_parent(
    fault: str, deep: Path, recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    run = tmp_path / "run"
    shutil.copytree(finished, parent)
    call = (str(recipe), tiny_data, run, overrides(parent))
    pretrain(*call, device="cpu")
    expected = store.sha256_file(deep / DEEP_LAST / WEIGHTS_FILE)
    assert store.sha256_file(run / DEEP_LAST / WEIGHTS_FILE) == expected
    shutil.rmtree(run / DEEP_LAST)
    shutil.rmtree(parent)
    if fault == "replaced":
        shutil.copytree(deep, parent)
    pretrain(*call, device="cpu")
    assert store.sha256_file(run / DEEP_LAST / WEIGHTS_FILE) == expected


def test_warm_start_without_steps_needs_same_parent(
    deep: Path, recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    run = tmp_path / "run"
    shutil.copytree(finished, parent)
    call = (str(recipe), tiny_data, run, overrides(parent))
    pretrain(*call, device="cpu")
    for step in run.glob("step-*"):
        shutil.rmtree(step)
    shutil.rmtree(parent / LAST)
    with pytest.raises(ConfigError, match=r"was started with another recipe: warm_start\.fingerprint"):
        pretrain(*call, device="cpu")
    shutil.copytree(finished / LAST, parent / LAST)
    pretrain(*call, device="cpu")
    assert store.sha256_file(run / DEEP_LAST / WEIGHTS_FILE) == store.sha256_file(deep / DEEP_LAST / WEIGHTS_FILE)


def test_warm_start_damaged_steps_restart_from_parent(
    deep: Path, recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(deep, tmp_path / "run"))
    for step in run.glob("step-*"):
        (step / WEIGHTS_FILE).write_bytes(b"")
    pretrain(str(recipe), tiny_data, run, overrides(finished), device="cpu")
    assert store.sha256_file(run / DEEP_LAST / WEIGHTS_FILE) == store.sha256_file(deep / DEEP_LAST / WEIGHTS_FILE)


def test_warm_start_wrong_parent_raises_before_writing(
    recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    for verb in (pretrain, dry_run_pretraining):
        with pytest.raises(ConfigError, match="hidden_size is 16, the recipe's model has 32"):
            verb(str(recipe), tiny_data, tmp_path / "out", overrides(finished, "model.hidden_size=32"), device="cpu")
    with pytest.raises(CheckpointError, match="no such directory"):
        pretrain(str(recipe), tiny_data, tmp_path / "out", overrides(tmp_path / "gone"), device="cpu")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- runs with warm_start.continues


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path) -> Path:
    """The first 15 of the recipe's 30 steps, with the learning rates of all 30; tests must not change it."""
    out = tmp_path_factory.mktemp("half") / "out"
    first = ("schedule.total_steps=15", "schedule.decay_steps=30")
    pretrain(str(recipe), tiny_data, out, first, device="cpu")
    return out


@pytest.fixture(scope="module")
def continued(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path, half: Path) -> Path:
    """The run that continues `half` to step 30; tests must not change it."""
    out = tmp_path_factory.mktemp("continued") / "out"
    assert pretrain(str(recipe), tiny_data, out, [f"warm_start.continues={half}"], device="cpu").steps == 30
    return out


def recorded(run: Path) -> dict[str, Any]:
    """Return the table `warm_start` of a run's recipe."""
    warm_start: dict[str, Any] = tomllib.loads((run / "recipe.toml").read_text())["warm_start"]
    return warm_start


def test_continued_run_ends_in_the_bytes_of_one_run(half: Path, continued: Path, finished: Path) -> None:
    assert checkpoint_hashes(continued) == checkpoint_hashes(finished)
    journals = [journal.read_journal(run / "metrics.jsonl") for run in (half, continued, finished)]
    losses = [[(r["step"], r["loss"], r["lr"]) for r in journal if "loss" in r] for journal in journals]
    assert losses[0] + losses[1] == losses[2]
    parent = half / "step-00000015"
    assert recorded(continued) == {
        "continues": str(half), "fingerprint": store.fingerprint(parent), "step": 15, "finished_warmup": 3,
        "positions": "tile", "stack": False,
        "changes": ["schedule.decay_steps: 30 -> None", "schedule.total_steps: 15 -> 30"],
    }  # fmt: skip


def test_continued_run_records_no_steps_of_its_parent(
    command: Sequence[object], recipe: Path, tiny_data: Path, tmp_path: Path
) -> None:
    parent = tmp_path / "parent"
    call = (*command, "--out", parent, "-s", "train.log_every=10")
    assert start(tmp_path / "log", *call, run_first=partial(terminate_at_step, 3)).wait() == 75
    assert checkpoint.read_state(parent / "step-00000003").window.counts["loss"] == 3, "stopped between two records"
    settings = (f"warm_start.continues={parent}",)
    with open_inputs(str(recipe), tiny_data, tmp_path / "run", settings, "cpu", verify=False) as inputs:
        job = inputs.new_job(inputs.recipe)
        state = set_first_weights(inputs, job, make_optimizer(job.model, inputs.recipe.optimizer), tmp_path / "run")
    assert (state.step, state.window) == (3, StepWindow())


def test_continued_run_on_two_ranks_equals_one(
    half: Path, command: Sequence[object], finished: Path, tmp_path: Path
) -> None:
    ranks = start_ranks(tmp_path / "log", 2, *command, "--out", tmp_path / "run", "-s", f"warm_start.continues={half}")
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    assert not ranks[1].printed_text()
    expected, actual = (hub.read_checkpoint(run / LAST).tensors for run in (finished, tmp_path / "run"))
    assert all(torch.allclose(tensor, actual[name], atol=1e-5, rtol=1e-5) for name, tensor in expected.items())


def test_continued_run_records_changes_and_resumes(
    recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    parent = tmp_path / "parent"
    run = tmp_path / "run"
    last = "step-00000040"
    shutil.copytree(finished, parent)
    fingerprint = store.fingerprint(parent / LAST)
    settings = ("model.hidden_dropout_prob=0.1", "schedule.total_steps=40", "init.neighbors=[-1]")
    call = (str(recipe), tiny_data, run, (f"warm_start.continues={parent}", *settings))
    pretrain(*call, device="cpu")
    changes = ["model.hidden_dropout_prob: 0.0 -> 0.1", "schedule.total_steps: 30 -> 40"]
    assert recorded(run)["changes"] == changes
    assert f"continues {parent / LAST}, and changes: {'; '.join(changes)}" in capfd.readouterr().err
    assert "schedule.total_steps: 30 -> 40" in (run / last / "README.md").read_text()
    assert store.verify(run / last, "checkpoint").parents["warm_start"] == fingerprint
    rates = {r["step"]: r["lr"] for r in journal.read_journal(run / "metrics.jsonl") if "lr" in r}
    assert rates[40] == pytest.approx(1e-2 * sum(1 - k / 40 for k in range(35, 40)) / 5)
    expected = checkpoint_hashes(run, last)
    shutil.rmtree(run / last)
    shutil.rmtree(parent)
    pretrain(*call, device="cpu")
    assert checkpoint_hashes(run, last) == expected
    assert recorded(run)["changes"] == changes


def test_continued_run_damaged_restarts_from_its_parent(
    half: Path,
    continued: Path,
    recipe: Path,
    tiny_data: Path,
    finished: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = copy_run(continued, tmp_path)
    for step in run.glob("step-*"):
        (step / WEIGHTS_FILE).write_bytes(b"")
    pretrain(str(recipe), tiny_data, run, [f"warm_start.continues={half}"], device="cpu")
    assert checkpoint_hashes(run) == checkpoint_hashes(finished)
    printed = capfd.readouterr().err
    assert "from step 15" in printed and "from step 0" not in printed


def test_continued_run_records_other_data(half: Path, recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    other_data = Path(shutil.copytree(tiny_data, tmp_path / "other"))
    values = store.read_json(other_data / "data.json")
    store.write_json(other_data / "data.json", {**values, "unigram_entropy_nats": values["unigram_entropy_nats"] + 1})
    store.seal(other_data, "data", store.read_manifest(tiny_data).parents)  # type: ignore[union-attr]
    settings = [f"warm_start.continues={half}", "schedule.total_steps=16"]
    pretrain(str(recipe), other_data, tmp_path / "run", settings, device="cpu")
    change = f"data: {store.fingerprint(tiny_data)!r} -> {store.fingerprint(other_data)!r}"
    assert change in recorded(tmp_path / "run")["changes"]


def test_continued_run_has_no_second_warmup(finished: Path, recipe: Path, tiny_data: Path, tmp_path: Path) -> None:
    settings = ["schedule.total_steps=1000", "schedule.warmup_steps=100", f"warm_start.continues={finished}"]
    plan = dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", settings, device="cpu").plan
    assert (plan.steps, plan.steps_done_before, plan.warmup_steps) == (1000, 30, 3)
    timed = dry_run_pretraining(str(recipe), tiny_data, tmp_path / "run", settings, max_time="5s", device="cpu").plan
    assert timed.steps > 30 and timed.warmup_steps == 3


def test_continued_run_invalid_parent_raises(
    finished: Path, recipe: Path, tiny_data: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    sublayers_and_positions = r"of 1 attention and 1 feed-forward sub-layers, \d+ positions"
    weights = create_checkpoint(tmp_path / "weights", tiny_vocabulary, hub.read_checkpoint(finished / LAST).config)
    for parent, more, message in (
        (weights, (), r"is not a step of `albert pretrain` with its optimizer\.safetensors"),
        (Path("albert/albert-base-v2"), (), "no such directory"),
        (finished, (), r"is at step 30, and schedule\.total_steps is 30"),
        (finished, ("model.num_hidden_groups=2",), sublayers_and_positions),
        (finished, ("model.max_position_embeddings=512",), sublayers_and_positions),
        (finished, ("data.sentence_loss=three-way", "schedule.total_steps=40"), "2 order labels; .* 3 order labels"),
        (finished, (f"warm_start.checkpoint={finished}",), "either checkpoint or continues"),
        (finished, ("schedule.decay_steps=20",), r"decay_steps is 20: .* zero from there to the last step, 30"),
    ):
        settings = [f"warm_start.continues={parent}", *more]
        with pytest.raises((ConfigError, CheckpointError), match=message):
            pretrain(str(recipe), tiny_data, tmp_path / "run", settings, device="cpu")
    assert not (tmp_path / "run").exists()


def test_resumed_run_without_a_model_section_needs_no_parent(finished: Path, tiny_data: Path, tmp_path: Path) -> None:
    parent = Path(shutil.copytree(finished, tmp_path / "parent"))
    settings = [f"warm_start.checkpoint={parent}", "schedule.total_steps=4", "schedule.warmup_steps=1"]
    settings += ["train.batch_size=4", "train.precision=fp32", "train.eval_sequences=8", "data.max_seq_length=32"]
    call = ("continue", tiny_data, tmp_path / "run", settings)
    first = pretrain(*call, device="cpu")
    shutil.rmtree(parent)
    assert pretrain(*call, device="cpu").steps == first.steps == 4


@pytest.mark.parametrize(("key", "steps"), [("checkpoint", 2), ("continues", 32)])
def test_resumed_run_finds_the_parent_in_another_directory(
    key: str, steps: int, recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path
) -> None:
    overrides = [f"schedule.total_steps={steps}", "train.save_every=0"]
    parent = Path(shutil.copytree(finished / LAST, tmp_path / "parent"))
    call = (str(recipe), tiny_data, tmp_path / "run")
    first = pretrain(*call, [*overrides, f"warm_start.{key}={parent}"], device="cpu")
    moved = parent.rename(tmp_path / "moved")
    assert pretrain(*call, [*overrides, f"warm_start.{key}={moved}"], device="cpu") == first
    other = finished / "step-00000025"
    with pytest.raises(ConfigError, match=rf"another recipe: warm_start\.{key}"):
        pretrain(*call, [*overrides, f"warm_start.{key}={other}"], device="cpu")
