"""`albert params` compares models completely, exactly, readably, and without torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from albert_cli.counting import activations, costs
from albert_cli.counting.paper import PAPER_MODELS
from albert_cli.counting.tables import describe_models
from albert_cli.model.config import PRESETS
from tests.helpers.command import albert
from tests.helpers.markdown import read_tables
from tests.helpers.paper_counts import MAIN


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two models fit next to each other, whatever terminal runs the tests."""
    monkeypatch.setenv("COLUMNS", "120")


def rows(text: str) -> dict[str, list[str]]:
    """Return the values of each row of a table by its label; columns are at least two spaces apart."""
    cells_by_label: dict[str, list[str]] = {}
    for line in text.splitlines():
        label, *values = re.split(r"  +", line.strip())
        cells_by_label.setdefault(label, " ".join(values).split())
    return cells_by_label


def test_params_without_names_lists_seven_and_the_paper() -> None:
    models, text = describe_models()
    assert [model.shape.name for model in models] == list(MAIN)
    for model in models:
        without, with_pooler, total, millions = MAIN[model.shape.name]
        counts = model.counts
        assert (counts.without_pooler, counts.with_pooler) == (without, with_pooler)
        assert counts.total == total == sum(asdict(model.parts).values())
        assert counts.paper is not None and counts.paper.figure == millions
        assert f"{counts.paper_count:,}" in text and f"{millions}M" in text
        json.dumps(model.to_json())


def test_params_few_models_are_shown_by_part() -> None:
    _, text = describe_models(["albert-base", "bert-base"])
    shown = rows(text)
    assert shown["embeddings"] == ["3,906,048", "23,436,288"]
    assert shown["projection from E to H"] == ["99,072", "0"]
    assert shown["attention"] == ["2,363,904", "28,366,848"]
    assert shown["word embeddings, V x H"] == ["23,040,000", "23,040,000"]
    assert shown["V x E + E x H"] == ["3,938,304", "–"]
    assert shown["fraction of encoder: embeddings"][2:] == ["21.6", "%"]
    assert shown["blocks"][2:] == ["78.4", "%"]
    assert shown["total, with pooler and heads"] == ["11,813,810", "109,705,010"]
    assert shown["as the paper counts"] == ["11,683,584", "108,490,752"]
    assert shown["the paper says"] == ["12M", "108M"]
    assert shown["blocks computed"] == ["12", "12"]
    assert shown["sets of block weights"] == ["1", "12"]
    assert shown["weights, fp32"] == ["47.3", "MB", "439", "MB"]


def test_params_fp32_recipe_has_no_bf16_copy(tmp_path: Path) -> None:
    (tmp_path / "fp32.toml").write_text('extends = "mini/docs"\n[train]\nprecision = "fp32"\n')
    (fp32, bf16), text = describe_models([str(tmp_path / "fp32.toml"), "albert-base"], 16 * 10**9)
    assert (fp32.state.copy, bf16.state.copy) == (0, 2 * bf16.counts.total)
    assert (fp32.to_json()["precision"], bf16.to_json()["precision"]) == ("fp32", "bf16")
    length = fp32.sequence_length
    setup = replace(costs.GPU_SETUP, precision="fp32")
    assert fp32.activation_bytes[length].saved == activations.activation_bytes(fp32.config, length, setup)
    assert "LAMB" not in text


def test_params_of_xxlarge_count_factorized_embeddings() -> None:
    (xxlarge, bert_large), text = describe_models(["albert-xxlarge", "bert-large"])
    assert xxlarge.factorized_embeddings == 4_364_288 and "4,364,288" in text
    assert bert_large.factorized_embeddings is None


def test_inference_memory_grows_with_length_and_batch() -> None:
    (model,), text = describe_models(["bert-large"])
    sizes = model.inference_bytes
    weights = 4 * model.counts.total
    assert weights < sizes[128][1] < sizes[128][8] < sizes[512][8] < sizes[512][32]
    assert sizes[512][1] - weights == pytest.approx(4 * (sizes[128][1] - weights), rel=0.01)
    assert "inference, fp32, batch of" in text


def test_params_many_models_have_one_line_without_details() -> None:
    _, text = describe_models(PAPER_MODELS)
    assert "feed-forward" not in text
    assert "Applied:" not in text, "a note on a row that is not printed"
    _, text = describe_models(PAPER_MODELS, details=True)
    assert len([line for line in text.splitlines() if line.split()[:1] == ["feed-forward"]]) > 1  # tables
    assert "Applied:" in text
    assert all(f"{model[2]:,}" in text for model in MAIN.values())


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_params_any_width_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for names in (
        PAPER_MODELS,
        ("albert-base",),
        PAPER_MODELS[:4],
        ("albert-base:E=64,sharing=none", "albert-large:L=3"),
    ):
        for details in (False, True):
            _, text = describe_models(names, 80 * 10**9, details=details)
            assert max(map(len, text.splitlines())) <= columns


def test_params_flops_and_memory_equal_costs() -> None:
    (model,), _ = describe_models(["albert-large"], 16 * 10**9)
    config = PRESETS["albert-large"]
    assert model.sequence_length == 512
    assert model.flops_per_token.training == round(costs.training_flops(config, 512))
    assert model.state.total == costs.state_bytes(config, costs.GPU_SETUP).total
    assert list(model.activation_bytes) == [64, 128, 256, 320, 384, 512]
    for length, choice in model.activation_bytes.items():
        assert choice.saved == activations.activation_bytes(config, length, costs.GPU_SETUP)
        batch = model.largest_batches[length]
        assert batch.saved == activations.largest_batch(config, length, 16 * 10**9, costs.GPU_SETUP)
        assert batch.checkpointed == activations.largest_batch(
            config, length, 16 * 10**9, costs.GPU_SETUP, checkpointed=True
        )


def test_params_few_positions_limit_the_length() -> None:
    (few, many), text = describe_models(["mini/wiki", "albert-base"])
    assert few.sequence_length == few.config.max_position_embeddings < many.sequence_length == 512
    assert rows(text)["512 tokens"][0] == "–"
    (model,), _ = describe_models(["albert-base:max_position_embeddings=600"])
    assert model.sequence_length == 600
    assert list(model.activation_bytes)[-2:] == [512, 600]


def test_paper_recipes_have_the_shapes_of_presets() -> None:
    for name in PAPER_MODELS:
        (recipe, preset), _ = describe_models([f"pretrain/{name}", name])
        recipe_shape, preset_shape = (
            replace(model.config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
            for model in (recipe, preset)
        )
        assert recipe_shape == preset_shape


def test_params_assumed_vocabulary_is_reported(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text("[model]\nvocab_size = 8000\n")
    models, text = describe_models(["mini/wiki", str(recipe), "albert-base"])
    assert [model.config.vocab_size for model in models] == [30_000, 8_000, 30_000]
    assert [model.shape.vocab_size_assumed for model in models] == [True, False, False]
    assert [line for line in text.splitlines() if "30,000 tokens" in line] == [
        "mini/wiki: has no vocabulary size; counted with 30,000 tokens."
    ]


# ---------------------------------------------------------------- the command


def test_params_options_apply_to_all_models() -> None:
    call = ["params", "albert-base", "albert-large:E=64", "-s", "model.sharing=none", "--memory", "16GiB", "--json"]
    data = json.loads(albert(*call).out)
    assert [m["config"]["sharing"] for m in data["models"]] == ["none", "none"]
    assert [m["config"]["embedding_size"] for m in data["models"]] == [128, 64]
    assert {(m["device"], m["precision"], m["sequence_length"]) for m in data["models"]} == {("cuda", "bf16", 512)}
    expected = activations.largest_batch(
        replace(PRESETS["albert-base"], sharing="none"), 128, 16 * 2**30, costs.GPU_SETUP
    )
    assert data["models"][0]["largest_batch"]["128"]["kept"] == expected > 0


def test_params_markdown_any_width_is_one_table() -> None:
    (details,) = read_tables(albert("params", *PAPER_MODELS, "--details", "--markdown").out)
    assert all(list(row) == ["", *PAPER_MODELS] for row in details)
    assert len(read_tables(albert("params", "--memory", "80GB", "--markdown").out)) == 2


@pytest.mark.parametrize(
    ("arguments", "output_text"),
    [
        (["albert-base", "--memory", "12XB"], "'12XB' is not a size"),
        (["albert-base", "--memory", "0GB"], "--memory 0GB: only 0 bytes"),
        (["albert-base", "--memory", "12"], "--memory 12: only 12 bytes"),
        (["albert-base", "--paper"], "--paper has its own list of models"),
        (["--paper", "--memory", "12GB"], "--paper has no counts for --memory or --details"),
        (["--paper", "--details"], "--paper has no counts for --memory or --details"),
        (["albert-base", "-s", "train.seed=1"], "only keys of the [model] section change the shape"),
    ],
)
def test_params_wrong_usage_gives_one_line_and_a_hint(arguments: list[object], output_text: str) -> None:
    ended = albert("params", *arguments, expect=2)
    error, hint = ended.err.splitlines()
    assert output_text in error and hint.startswith("hint: ") and not ended.out


def test_params_import_nothing_heavy() -> None:
    script = (
        "import sys; from albert_cli.counting import tables, paper;"
        "tables.describe_models([], 10**10); tables.describe_models(['pretrain/bert-large']);"
        "paper.describe_paper(as_markdown=True);"
        "heavy = ('torch', 'numpy', 'transformers', 'matplotlib', 'huggingface_hub');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
