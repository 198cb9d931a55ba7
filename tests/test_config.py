"""Recipes: every mistake is reported with its key and a remedy, and a saved recipe is read back unchanged."""

from __future__ import annotations

import dataclasses
import shlex
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli import config
from albert_cli.errors import ConfigError
from albert_cli.training.pretrain_recipe import PretrainRecipe, load_pretrain_recipe, validate_pretrain_recipe
from albert_cli.training.settings import ScheduleSettings
from albert_cli.training.task_recipe import FinetuneRecipe

SCHEMAS: dict[str, type[Any]] = {"pretrain": PretrainRecipe, "finetune": FinetuneRecipe}
REQUIRED = {"pretrain": {}, "finetune": {"task": "mrpc"}}


def keys(schema: type[Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every section and key of a schema, as paths."""
    for name, hint in typing.get_type_hints(schema).items():
        yield (*prefix, name)
        if dataclasses.is_dataclass(hint):
            assert isinstance(hint, type)
            yield from keys(hint, (*prefix, name))


def nested(path: tuple[str, ...], value: object) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def check(kind: str, values: dict[str, Any]) -> Any:
    return config.validate_recipe(SCHEMAS[kind], REQUIRED[kind] | values, "recipe.toml")


def rejected(kind: str, values: dict[str, Any]) -> ConfigError:
    """Return the error of values that must be rejected."""
    try:
        check(kind, values)
    except ConfigError as error:
        return error
    raise AssertionError(f"{kind}: {values} is accepted")


# ---------------------------------------------------------------- rejected values


@pytest.mark.parametrize("kind", SCHEMAS)
def test_misspelled_key_is_rejected_with_a_suggestion(kind: str) -> None:
    for *section, name in keys(SCHEMAS[kind]):
        middle = len(name) // 2
        for typo in (name[: middle + 1] + name[middle:], name[:middle] + "q" + name[middle:]):
            error = rejected(kind, nested((*section, typo), 1))
            assert f"unknown key {'.'.join((*section, typo))!r}" in error.message
            assert name in str(error.hint), error.message


def wrong_values(schema: Any) -> list[object]:
    """Return values that are not of a type, of those that a recipe can contain."""
    if schema is bool:
        return ["true", 1, 0.0]
    if schema is str:
        return [1, 1.5, True, ["x"]]
    values: list[object] = [tomllib.loads("x = 2020-01-01")["x"], [[1]], True]
    if schema in (int, float):
        values += ["12", "twelve"] + ([1.5, 2.0] if schema is int else [])
    elif dataclasses.is_dataclass(schema):
        values += [3, "x"]
    return values


@pytest.mark.parametrize("kind", SCHEMAS)
def test_value_of_a_wrong_type_is_rejected(kind: str) -> None:
    for path in keys(SCHEMAS[kind]):
        schema: Any = SCHEMAS[kind]
        for part in path:
            schema = typing.get_type_hints(schema)[part]
        for value in wrong_values(schema):
            message = rejected(kind, nested(path, value)).message
            assert path[-1] in message, f"{path} {value!r}"
            assert "\n" not in message, f"{path} {value!r}"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        *[("pretrain", f"model.{k}", 0) for k in ("vocab_size", "hidden_size", "num_hidden_layers", "embedding_size")],
        ("pretrain", "model.hidden_dropout_prob", 1.0),
        ("pretrain", "model.hidden_act", "swish"),
        ("pretrain", "model.sharing", "some"),
        ("pretrain", "model.layer_norm_eps", float("nan")),
        ("pretrain", "data.max_seq_length", 2),
        ("pretrain", "data.masked_lm_probability", 1.5),
        ("pretrain", "data.sentence_loss", "both"),
        ("pretrain", "data.ngram", 0),
        ("pretrain", "masked_bias", "one"),
        *[("pretrain", "optimizer.lr", v) for v in (0.0, -1.0, float("nan"), float("inf"), 1e308)],
        ("pretrain", "optimizer.beta1", 1.0),
        ("pretrain", "optimizer.beta2", -0.1),
        ("pretrain", "optimizer.eps", 0.0),
        ("pretrain", "optimizer.weight_decay", -0.01),
        ("pretrain", "optimizer.clip_norm", -1.0),
        ("pretrain", "optimizer.name", "sgd"),
        ("pretrain", "optimizer.lr", "fast"),
        ("finetune", "optimizer", {"name": "adamw", "lr": "best"}),
        ("pretrain", "schedule.total_steps", 0),
        ("pretrain", "schedule.warmup_steps", -1),
        ("pretrain", "schedule.warmup_ratio", 1.0),
        *[("finetune", "schedule.epochs", v) for v in (0, -1.0, float("nan"), float("inf"))],
        ("finetune", "schedule.warmup_ratio", -0.1),
        ("finetune", "schedule", {"epochs": 2, "total_steps": 5}),
        ("pretrain", "train.eval_every", -1),
        *[("pretrain", f"train.{k}", 0) for k in ("batch_size", "micro_batch_size", "keep", "log_every")],
        ("pretrain", "train.seed", -1),
        ("pretrain", "train.save_every", -1),
        ("pretrain", "train.save_every", "soon"),
        ("pretrain", "train.save_every", "0m"),
        ("pretrain", "train.precision", "fp8"),
        ("finetune", "data.max_seq_length", 3),
        ("finetune", "data.train_examples", -1),
        ("finetune", "model.dropout", 1.0),
        ("finetune", "model.weights", "best"),
        ("finetune", "table.holdout", 0.0),
        ("finetune", "table.kind", "other"),
    ],
)  # fmt: skip
def test_value_out_of_range_is_rejected(kind: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError) as raised:
        check(kind, nested(tuple(key.split(".")), value))
    assert key.split(".")[-1] in raised.value.message


@pytest.mark.parametrize("text", ["", "\n \n", "# A truncated recipe", "[model]\n", "[train.nothing]"])
def test_recipe_that_sets_nothing_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "truncated.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"truncated\.toml: sets nothing") as raised:
        config.load_recipe(PretrainRecipe, str(path))
    assert raised.value.hint is not None
    assert "restore" in raised.value.hint
    (tmp_path / "child.toml").write_text('extends = "truncated.toml"\n')
    with pytest.raises(ConfigError, match=r"truncated\.toml: sets nothing"):
        config.read_recipe(str(tmp_path / "child.toml"))
    path.write_text('extends = "albert-base"')
    config.load_recipe(PretrainRecipe, str(path))


def test_missing_required_key_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"recipe\.toml: task is missing"):
        config.validate_recipe(FinetuneRecipe, {}, "recipe.toml")


def test_auto_lr_scales_with_square_root_of_batch_size() -> None:
    for batch_size, lr in ((4096, 0.00176), (1024, 0.00088), (32_768, 0.00176 * 8**0.5)):
        values = {"optimizer": {"lr": "auto"}, "train": {"batch_size": batch_size}}
        recipe = validate_pretrain_recipe(values, "recipe.toml")
        assert recipe.optimizer.lr == recipe.optimizer.peak_lr == pytest.approx(lr)
        assert f"lr = {recipe.optimizer.lr!r}" in config.dump_toml(recipe)
    paper = load_pretrain_recipe("albert-base", [], 30_000)
    smaller = load_pretrain_recipe("albert-base", ["train.batch_size=512"], 30_000)
    assert paper.optimizer.lr == 0.00176
    assert smaller.optimizer.lr == pytest.approx(0.000622, rel=1e-3)
    assert paper.schedule.resolved_warmup_steps == smaller.schedule.resolved_warmup_steps == 3125


def test_integers_are_allowed_as_floats() -> None:
    assert check("pretrain", {"optimizer": {"lr": 1, "clip_norm": 0}}).optimizer.lr == 1.0


# ---------------------------------------------------------------- files


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_recipe_overrides_the_recipe_it_extends(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", "[train]\nseed = 1\nkeep = 5\n[optimizer]\nlr = 0.5\n")
    write(tmp_path / "sub" / "middle.toml", 'extends = "../base.toml"\n[train]\nseed = 2\n')
    top = write(tmp_path / "top.toml", 'extends = "sub/middle.toml"\nmasked_bias = "unigram"\n[train]\nlog_every = 3\n')
    values = config.read_recipe(top)
    assert values == {
        "train": {"seed": 2, "keep": 5, "log_every": 3}, "optimizer": {"lr": 0.5}, "masked_bias": "unigram"
    }  # fmt: skip
    loaded = config.load_recipe(PretrainRecipe, top, ["train.seed=3", "train.keep=1"])
    assert (loaded.train.seed, loaded.train.keep, loaded.train.log_every, loaded.optimizer.lr) == (3, 1, 3, 0.5)


def test_epochs_replace_the_extended_total_steps(tmp_path: Path) -> None:
    write(tmp_path / "base.toml", 'task = "rte"\n[schedule]\ntotal_steps = 800\nwarmup_steps = 200\n')
    write(tmp_path / "over.toml", 'extends = "base.toml"\n[schedule]\nepochs = 2\nwarmup_ratio = 0.1\n')
    recipe = str(tmp_path / "over.toml")
    assert config.read_recipe(recipe)["schedule"] == {"epochs": 2, "warmup_ratio": 0.1}
    loaded = config.load_recipe(FinetuneRecipe, recipe)
    values = tomllib.loads(config.dump_toml(loaded))
    assert config.validate_recipe(FinetuneRecipe, values, "saved") == loaded
    overridden = config.load_recipe(FinetuneRecipe, recipe, ["schedule.epochs=3", "schedule.total_steps=7"]).schedule
    assert (overridden.total_steps, overridden.epochs) == (7, None)
    assert loaded.schedule.to_steps(100, 32) == ScheduleSettings(6, None, 0.1)
    assert loaded.schedule.to_steps(3, 32).total_steps == 1


def test_shipped_recipe_can_be_extended_by_name(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine.toml", 'extends = "albert-base"\n[train]\nseed = 9\n')
    plain = config.load_recipe(PretrainRecipe, "albert-base")
    changed = config.load_recipe(PretrainRecipe, mine)
    assert changed == dataclasses.replace(plain, train=dataclasses.replace(plain.train, seed=9))


def test_circular_extension_is_rejected(tmp_path: Path) -> None:
    for names in (["a"], ["a", "b"], ["a", "b", "c"]):
        for name, following in zip(names, [*names[1:], names[0]], strict=True):
            write(tmp_path / f"{name}.toml", f'extends = "{following}.toml"\n')
        with pytest.raises(ConfigError, match="forms a circle"):
            config.read_recipe(str(tmp_path / "a.toml"))
    (tmp_path / "sub").mkdir()
    write(tmp_path / "d.toml", 'extends = "sub/../d.toml"\n')
    with pytest.raises(ConfigError, match="forms a circle"):
        config.read_recipe(str(tmp_path / "d.toml"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[train\n", "not valid TOML"),
        (b"[train]\nseed = 1\nseed = 2\n", "not valid TOML"),
        (b"a = '\xff'\n", r"not valid UTF-8 \(byte 5\)"),
        (b"extends = 3\n", "extends must be the name"),
        (b'extends = "gone.toml"\n', "no such recipe file"),
        (b'extends = "albert-bass"\n', "no recipe is called"),
    ],
)
def test_unreadable_recipe_is_rejected(text: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        config.read_recipe(str(path))


@pytest.mark.parametrize("name", ["tiny.toml.txt", "tiny.TXT", "folder"])
def test_file_with_another_suffix_is_no_recipe(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    if name != "folder":
        write(tmp_path / name, "[train]\nseed = 1\n")
    with pytest.raises(ConfigError, match=r"ends in \.toml"):
        config.read_recipe(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("run", "run/recipe.toml"),
        ("zzzzzz", "`albert recipes list`"),
        ("a.json", "as TOML"),
        ("a.yaml", "as TOML"),
        ("recipes/mini/wiki.toml", "'mini/wiki'"),
        ("mini/wiki.toml", "'mini/wiki'"),
    ],
)
def test_path_that_is_no_recipe_has_a_fitting_hint(
    name: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run" / "recipe.toml", "[train]\nseed = 1\n")
    (tmp_path / "zzzzzz").mkdir()
    for file in ("a.json", "a.yaml"):
        write(tmp_path / file, "{}")
    with pytest.raises(ConfigError) as raised:
        config.read_recipe(name)
    assert hint in str(raised.value.hint) and "rename" not in str(raised.value.hint)


def test_recipe_without_its_suffix_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write(tmp_path / "sub" / "tiny.TOML", "[train]\nseed = 1\n"))
    assert config.read_recipe(str(path)) == {"train": {"seed": 1}}
    path.rename(path.with_suffix(".toml"))
    write(path.with_name("child.toml"), 'extends = "tiny"\n')
    for name, suggestion in {"sub/tiny": "sub/tiny.toml", "sub/child.toml": "tiny.toml"}.items():
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ConfigError) as raised:
            config.read_recipe(name)
        assert raised.value.hint == f"did you mean {suggestion!r}?"


def test_recipe_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xef\xbb\xbf# A comment.\n[train]\nseed = 1\n")
    assert config.read_recipe(str(path)) == {"train": {"seed": 1}}
    assert config.read_description(path) == "A comment."


def test_short_names_of_recipes_must_be_unique() -> None:
    assert config.find_recipe("albert-base") == config.find_recipe("pretrain/albert-base")
    with pytest.raises(ConfigError, match="no recipe is called 'albert-bose'") as raised:
        config.find_recipe("albert-bose")
    assert raised.value.hint == "did you mean 'pretrain/albert-base'?"
    with pytest.raises(ConfigError, match="ambiguous") as raised:
        config.find_recipe("table")
    assert raised.value.hint is not None
    assert "finetune/table" in raised.value.hint


# ---------------------------------------------------------------- overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1", {"a": {"b": 1}}),
        ("a.b = 1e-3", {"a": {"b": 1e-3}}),
        ("a=true", {"a": True}),
        ("a.b.c=x", {"a": {"b": {"c": "x"}}}),
        ('a="1"', {"a": "1"}),
        ("a=10m", {"a": "10m"}),
        ("a=x=y", {"a": "x=y"}),
        ("a=", {"a": ""}),
        ('a=["x", "y"]', {"a": ["x", "y"]}),
        ("a=1\n", {"a": 1}),
    ],
)
def test_override_is_a_toml_value_or_a_string(text: str, value: object) -> None:
    assert config.parse_override(text) == value


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1", {"a.b": 1}),
        ("a . b = [1]", {"a.b": [1]}),
        ("a={b=1, c={d=x}}", {"a": "{b=1, c={d=x}}"}),
        ('a={b=1, c={d="x"}}', {"a.b": 1, "a.c.d": "x"}),
    ],
)
def test_flatten_override_has_full_keys(text: str, values: dict[str, object]) -> None:
    assert config.flatten_override(text) == values


@pytest.mark.parametrize("text", ["", "a", "=1", "a.=1", ".a=1", "a..b=1"])
def test_malformed_override_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected section\.key=value"):
        config.parse_override(text)


@pytest.mark.parametrize("text", ["a=1\nb = 2", "table.label=1\ntable.text=2", "a=1\n[b]"])
def test_override_with_two_keys_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="further lines") as raised:
        config.parse_override(text, FinetuneRecipe)
    assert "once per key" in str(raised.value.hint)


def test_override_that_is_no_utf8_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"-s warm_start\.checkpoint=….*not valid UTF-8"):
        config.parse_override("warm_start.checkpoint=/tmp/caf\udce9")


def test_overrides_are_checked_like_the_recipe() -> None:
    with pytest.raises(ConfigError, match=r"unknown key 'optimizer\.lrr'"):
        config.load_recipe(PretrainRecipe, "albert-base", ["optimizer.lrr=1"])
    with pytest.raises(ConfigError, match=r"unknown key 'train\.lr'") as raised:
        config.load_recipe(PretrainRecipe, "albert-base", ["train.lr=1"])
    assert raised.value.hint == "did you mean optimizer.lr?"
    with pytest.raises(ConfigError, match=r"train\.log_every is '5x': it should"):
        config.load_recipe(PretrainRecipe, "albert-base", ["train.log_every=5x"])
    with pytest.raises(ConfigError, match="model is 3: "):
        config.load_recipe(PretrainRecipe, "albert-base", ["model=3"])
    with pytest.raises(ConfigError, match=r"train\.save_every is 1\.5: "):
        config.load_recipe(PretrainRecipe, "albert-base", ["train.save_every=1.5"])


@pytest.mark.parametrize(
    ("overrides", "origin"),
    [
        (["schedule.total_steps=abc"], "-s schedule.total_steps=abc: "),
        (["train={save_every='abc'}"], "-s train={save_every='abc'}: "),
        (["optimizer.lrr=1", "train.seed=3"], "-s optimizer.lrr=1: "),
        (["train.seed=1", "train.seed=x"], "-s train.seed=x: "),
        (["model.max_position_embeddings=16"], "albert-base: "),
    ],
)
def test_error_in_an_override_names_it(overrides: list[str], origin: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.load_recipe(PretrainRecipe, "albert-base", overrides)
    assert raised.value.message.startswith(origin)


def test_value_of_a_wrong_form_has_a_hint_that_works() -> None:
    for override in ("train.compile=true", "train.track=wandb", "masked_bias=x", "init.neighbors=3"):
        with pytest.raises(ConfigError) as raised:
            config.load_recipe(PretrainRecipe, "albert-base", [override])
        arguments = shlex.split(str(raised.value.hint))
        config.load_recipe(PretrainRecipe, "albert-base", [arguments[arguments.index("-s") + 1]])


@pytest.mark.parametrize(
    ("override", "hint"),
    [
        ("train.track=[wandb]", '["wandb"]'),
        ("train.track=wandb,mlflow", '["wandb", "mlflow"]'),
        ("model.group_sizes=2,10", "[2, 10]"),
        ("optimizer.lr=.001", "write 0.001"),
        ("train.seed=07", "write 7"),
        *((f"train.checkpoint_activations={value}", "write true or false") for value in ("True", "yes", "1")),
    ],
)
def test_wrong_form_of_a_value_hint_has_the_right_one(override: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config.load_recipe(PretrainRecipe, "albert-base", [override])
    assert hint in str(raised.value.hint)


def test_labels_that_are_no_list_have_a_hint() -> None:
    with pytest.raises(ConfigError) as raised:
        config.load_recipe(FinetuneRecipe, {"task": "table"}, ["table.labels=a, 2"])
    assert 'table.labels = ["a", "2"]' in str(raised.value.hint)


def test_syntax_error_hint_shows_the_form_of_toml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not valid TOML") as raised:
        config.read_recipe(write(tmp_path / "a.toml", "[train]\nseed: 1\n"))
    assert "key = " in str(raised.value.hint)


def test_override_of_a_text_may_look_like_a_number() -> None:
    names = ["table.label=1", "table.text=true", "table.labels=[0, 1.5, false]", "table.holdout=0.2"]
    table = config.load_recipe(FinetuneRecipe, {"task": "table"}, names).table
    assert (table.label, table.text, table.labels, table.holdout) == ("1", "true", ("0", "1.5", "false"), 0.2)
    for text in ("1e3", "2025", "1_000", "0x10", "+5", "nan", "2025-01-02", "2025-01-02 10:00:00", "10:00:00"):
        loaded = config.load_recipe(FinetuneRecipe, {"task": "table"}, [f"table.text={text}"])
        assert loaded.table.text == text
    continued = config.load_recipe(PretrainRecipe, "albert-base", ["warm_start.continues=2025"])
    assert continued.warm_start is not None and continued.warm_start.continues == "2025"
    table = config.load_recipe(FinetuneRecipe, {"task": "table"}, ["table.labels=[1e3, 2025-01-02]"]).table
    assert table.labels == ("1e3", "2025-01-02")
    table = config.load_recipe(FinetuneRecipe, {"task": "table"}, ["table={label=7}"]).table
    assert table.label == "7"
    with pytest.raises(ConfigError, match=r"table\.label is 1: "):
        config.load_recipe(FinetuneRecipe, {"task": "table", "table": {"label": 1}})


# ---------------------------------------------------------------- saved recipes


fractions = st.floats(0, 0.99)
positive = st.floats(1e-300, 1e38)
counts = st.integers(1, 2**62 - 1)
texts = st.text()


@st.composite
def pretraining_recipes(draw: st.DrawFn) -> PretrainRecipe:
    values = config.to_toml_values(PretrainRecipe())
    values["optimizer"] |= draw(
        st.fixed_dictionaries({"lr": positive, "beta1": fractions, "clip_norm": positive, "eps": positive})
    )
    values["train"] |= draw(
        st.fixed_dictionaries({"seed": counts, "save_every": counts | st.sampled_from(["10m", "1.5h"])})
    )
    values["schedule"] |= {"total_steps": (total := draw(counts)), "warmup_ratio": draw(fractions)}
    values["schedule"] |= draw(st.fixed_dictionaries({}, optional={"warmup_steps": st.integers(1, total)}))
    values["data"]["favor_shorter_ngram"] = draw(st.booleans())
    return config.validate_recipe(PretrainRecipe, values, "sampled")


@given(pretraining_recipes())
def test_saved_recipe_is_read_back_unchanged(recipe: PretrainRecipe) -> None:
    values = tomllib.loads(config.dump_toml(recipe))
    assert config.validate_recipe(PretrainRecipe, values, "saved") == recipe
    assert list(config.list_differences(values, config.to_toml_values(recipe))) == []


@given(st.lists(texts, unique=True, max_size=4).filter(lambda labels: len(labels) != 1), texts, texts)
def test_any_text_is_read_back_unchanged(labels: list[str], text: str, task: str) -> None:
    recipe = config.validate_recipe(
        FinetuneRecipe, {"task": task, "table": {"labels": labels, "text": text}}, "sampled"
    )
    assert config.validate_recipe(FinetuneRecipe, tomllib.loads(config.dump_toml(recipe)), "saved") == recipe


def test_differences_list_the_key_and_both_values() -> None:
    old = {"train": {"seed": 1, "keep": 2}, "masked_bias": "zero"}
    new = {"train": {"seed": 3, "keep": 2}, "masked_bias": "zero", "more": {"x": 1}}
    assert list(config.list_differences(old, new)) == ["more: None -> {'x': 1}", "train.seed: 1 -> 3"]
