"""Tests of `albert quickstart`: plans, and a run on a user's own text and table."""

from __future__ import annotations

import json
import random
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from albert_cli import machine, store
from albert_cli.cli.app import invoke_json
from albert_cli.data.records import read_data_facts
from albert_cli.errors import AlbertError, BusyError, ConfigError, Interrupted
from albert_cli.inspection import inspect_directory
from albert_cli.quickstart import bundled
from albert_cli.quickstart import plan as plans
from albert_cli.quickstart.bundled import BundledDataSettings
from albert_cli.quickstart.run import _mask_one_word, _require_same_plan, run_quickstart
from albert_cli.text import build_vocabulary
from albert_cli.text.clean import Cleaning
from albert_cli.text.corpus import Document
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.work_status import read_status
from tests.helpers.command import albert
from tests.helpers.data_directories import unfinish
from tests.helpers.tiny_recipe import SMALL_BATCHES

TOPICS = {"boat": ("sail", "harbor", "wave", "deck"), "train": ("rail", "station", "signal", "track")}
FILLERS = ("the", "a", "was", "near", "old", "and", "new", "came", "left", "under")


def sentence(rng: random.Random) -> tuple[str, str]:
    topic = rng.choice(list(TOPICS))
    words = [rng.choice(FILLERS) for _ in range(9)]
    words[rng.randrange(9)] = rng.choice(TOPICS[topic])
    return " ".join(words), topic


def write_own_data(
    folder: Path, name: str = "text.txt", separator: str = "\n\n", prefix: str = ""
) -> tuple[Path, Path]:
    """Write unlabeled text and a table with 60 training and 40 dev rows; return both paths.

    name: of the text; separator: between its parts, by default documents; prefix: of each review.
    """
    rng = random.Random(0)
    text = folder / name
    documents = [". ".join(sentence(rng)[0] for _ in range(5)) + "." for _ in range(400)]
    text.write_text(separator.join(documents) + "\n")
    for split, count in (("train", 60), ("dev", 40)):
        reviews = [sentence(rng) for _ in range(count)]
        rows = [json.dumps({"review": prefix + review, "label": label}) for review, label in reviews]
        (folder / "table").mkdir(exist_ok=True)
        (folder / "table" / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return text, folder / "table"


def invoke_unless_pretraining(error: AlbertError, words: Sequence[str]) -> store.JsonObject:
    """Run a command like `invoke_json`, but raise an error instead of pretraining."""
    if words[0] == "pretrain":
        raise error
    return invoke_json(words)


@pytest.fixture
def own_data(tmp_path: Path) -> tuple[Path, Path]:
    return write_own_data(tmp_path)


@pytest.fixture
def small_recipe(tmp_path: Path) -> str:
    """A recipe of pretraining with small batches."""
    path = tmp_path / "small.toml"
    path.write_text(f'extends = "mini/docs"\n{SMALL_BATCHES}')
    return str(path)


@pytest.fixture
def one_seed(small_recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a quickstart on the user's data pretrain on small batches and fine-tune one seed for one epoch.

    With one core the quickstart fine-tunes in this process; `test_bundled_quickstart_…` fine-tunes in two others.
    """
    monkeypatch.setattr(machine, "available_cores", lambda: 1)
    plan_own_data = plans.plan_own_data

    def plan_one_seed(*arguments: Any) -> plans.QuickstartPlan:
        plan = plan_own_data(*arguments)
        return replace(plan, runs=1, recipe=small_recipe, overrides=(*plan.overrides, "schedule.epochs=1"))

    monkeypatch.setattr(plans, "plan_own_data", plan_one_seed)


@pytest.mark.usefixtures("one_seed")
def test_own_data_runs_every_step_and_resumes(
    own_data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, table = own_data
    plan = plans.plan_own_data([str(text)], str(table), "1s", "20", 40, ["table.text=review"])
    monkeypatch.setattr("sys.argv", ["albert", "quickstart", "--out", "out"])
    with pytest.raises(Interrupted):
        run_quickstart(tmp_path / "out", partial(invoke_unless_pretraining, Interrupted("SIGTERM")), plan, "cpu")
    status = read_status(tmp_path / "out")
    remaining = ["pretrain", "scores/20", "report.html"]
    assert [unit.name for unit in status.units if unit.state == "remaining"] == remaining
    assert (status.counts["done"], status.commands) == (2, ["albert quickstart --out out"])
    command = ["quickstart", "--text", text, "--table", table, "--size", 40, "--max-time", "1s", "--labels", 20]
    command[5:5] = ["-s", "table.text=review"]
    ended = albert(*command, "--out", tmp_path / "out", "--device", "cpu")
    result = store.read_json(tmp_path / "out" / "quickstart.json")
    assert list(result["task"]) == ["20"]
    assert "seconds" not in result, "the time of the interrupted call is unknown"
    assert read_status(tmp_path / "out").is_finished
    assert set(result["task"]["20"]) == {"pretrained", "init", "random", "classical", "majority"}
    assert result["differences"]["20"]["classical"]["seeds"] == 1
    assert ended.out.rstrip().endswith(result["conclusion"])
    assert inspect_directory(tmp_path / "out").kind == "quickstart"
    assert result["conclusion"] in albert("inspect", tmp_path / "out").out
    for name in ("vocab", "data", "pretrain", "eval", "report"):
        assert f"$ albert {name} " in ended.err
    assert (tmp_path / "out" / "report.html").is_file()
    again = albert(*command, "--out", tmp_path / "out", "--device", "cpu")
    assert again.out == ended.out
    changed = albert(*command[:-1], "30", "--out", tmp_path / "out", expect=6)
    assert "a quickstart with other options" in changed.err


@pytest.fixture
def interrupted_smoke(small_recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plans.QuickstartPlan:
    """The plan of `--smoke`, made smaller; a quickstart was interrupted before pretraining, and is renamed to `moved`.

    The current folder contains it.
    """
    rng = random.Random(0)
    documents = [
        Document(". ".join(sentence(rng)[0].capitalize() for _ in range(20)) + ".", f"{package}.m{module}")
        for package in TOPICS
        for module in range(20)
    ]
    settings = BundledDataSettings("docs:stdlib", packages=2, heldout=0.5, train_sentences=40, test_sentences=40)
    plan = replace(plans.SMOKE, max_time="1s", vocabulary_size=40, label_counts=(20,), runs=1, bundled=settings)
    plan = replace(plan, recipe=small_recipe, overrides=("schedule.epochs=1",))
    monkeypatch.setattr(bundled, "read_documents", lambda _: documents)
    monkeypatch.setattr(plans, "SMOKE", plan)
    monkeypatch.setattr("sys.argv", ["albert", "quickstart", "--smoke", "--device", "cpu"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Interrupted):
        run_quickstart(Path("quickstart"), partial(invoke_unless_pretraining, Interrupted("SIGTERM")), plan, "cpu")
    Path("quickstart").rename("moved")
    return plan


@pytest.mark.usefixtures("interrupted_smoke")
def test_bundled_quickstart_resumes_in_a_moved_directory(tmp_path: Path) -> None:
    (command,) = read_status(Path("moved")).commands
    assert command == f"albert quickstart --out {tmp_path}/moved --smoke --device cpu"
    ended = albert(*shlex.split(command)[1:])
    fingerprint = store.fingerprint(Path("moved/data"))
    shutil.rmtree("moved/task")
    Path("moved").rename("again")
    again = albert("quickstart", "--smoke", "--device", "cpu", "--out", "again")
    assert again.out.replace("again", f"{tmp_path}/moved") == ended.out
    assert store.fingerprint(Path("again/data")) == fingerprint
    with Path("again/corpus.jsonl").open("a") as corpus:
        corpus.write('{"text": "Another text."}\n')
    assert (
        "again/vocabulary: contains a vocabulary with other settings (sources)"
        in albert("quickstart", "--smoke", "--out", "again", expect=6).err
    )


def test_unfinished_data_in_a_moved_directory_restarts(interrupted_smoke: plans.QuickstartPlan) -> None:
    unfinish(Path("moved/data"))
    with pytest.raises(Interrupted, match="before pretraining"):
        invoke = partial(invoke_unless_pretraining, Interrupted("before pretraining"))
        run_quickstart(Path("moved").resolve(), invoke, interrupted_smoke, "cpu")
    (unit,) = read_data_facts(Path("moved/data")).sources
    assert unit["parts"][0]["source"] == str(Path("moved/corpus.jsonl").resolve())


@pytest.mark.usefixtures("one_seed")
def test_one_document_and_leading_hyphens_reach_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, table = write_own_data(tmp_path, "-text.txt", separator=" ", prefix="- ")
    monkeypatch.chdir(tmp_path)
    rows = (table / "dev.jsonl").read_text().splitlines()
    long_rows = [row.replace("- ", f"- {'kw' * 150} ") for row in rows]  # more tokens than the model has positions
    (table / "dev.jsonl").write_text("\n".join([*long_rows, *rows]) + "\n")
    options = ["--size", 36, "--max-time", "1s", "--labels", 20, "-s", "table.text=review", "--device", "cpu"]
    ended = albert("quickstart", "--text", text.name, "--table", table, *options, "--out", "out", "--quiet")
    assert "no held-out MLM loss" in ended.out
    result = store.read_json(tmp_path / "out" / "quickstart.json")
    assert result["seconds"] > 0
    sentences = [row["sentence"] for row in result["examples"]]
    assert sentences and all(sentence.startswith("- ") and "kw" not in sentence for sentence in sentences)
    again = albert("quickstart", "--text", text.name, "--table", table, *options, "--out", "out")
    assert again.out == ended.out and "nothing is held out" in again.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--text", "no.txt", "--table", "{table}", "-s", "table.text=review"], 3, "no.txt"),
        (["--text", "{text}", "--table", "nowhere"], 3, "nowhere: no such file or directory"),
        (
            ["--text", "{text}", "--table", "{table}", "--labels", "500", "-s", "table.text=review"],
            2,
            "has 60 training rows",
        ),
        (
            ["--text", "{text}", "--table", "{table}", "--labels", "many", "-s", "table.text=review"],
            2,
            "--labels many: not a list of numbers",
        ),
        (
            ["--text", "{text}", "--table", "{table}", "--max-time", "5 mn", "-s", "table.text=review"],
            2,
            "--max-time: '5 mn' is not a duration",
        ),
        (["--text", "{text}"], 2, "needs both --text and --table"),
        (["--text", "{text}", "--table", "{table}", "-s", "table.text=body"], 3, "no column 'body'"),
        (
            ["--text", "{text}", "--table", "{table}", "-s", "table.text=review", "-s", "table.test={text}"],
            3,
            "for the text",
        ),
        (["-s", "table.text=review"], 2, "needs both --text and --table"),
        (["--no-strip-accents"], 2, "needs both --text and --table"),
        (["--text", "-", "--table", "{table}", "-s", "table.text=review"], 3, "--text -: stdin"),
        (["--text", "-@2", "--table", "{table}", "-s", "table.text=review"], 3, "--text -: stdin"),
        (
            ["--text", "{text}", "--table", "{table}", "-s", "table.text=review", "-s", "data.train_examples=30"],
            2,
            "--labels sets this key",
        ),
        (
            ["--text", "{text}", "--table", "{table}", "-s", "table.text=review", "-s", "data . train_examples=30"],
            2,
            "--labels sets this key",
        ),
    ],
)
def test_wrong_own_data_is_one_clear_line(
    arguments: list[str], code: int, message: str, own_data: tuple[Path, Path], tmp_path: Path
) -> None:
    text, table = own_data
    words = [word.format(text=text, table=table) for word in arguments]
    ended = albert("quickstart", *words, "--out", tmp_path / "out", expect=code)
    errors = [line for line in ended.err.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "out").exists()


def test_options_may_change_until_a_step_is_finished(own_data: tuple[Path, Path], tmp_path: Path) -> None:
    text, table = own_data
    command = ["quickstart", "--text", text, "--table", table, "-s", "table.text=review", "--out", tmp_path / "out"]
    for size in (30_000, 20_000):  # the text has too few different words for either
        assert "the text allows at most" in albert(*command, "--size", size, expect=3).err
    assert store.read_json(tmp_path / "out" / "quickstart-plan.json")["vocabulary_size"] == 20_000


def test_language_options_reach_vocab_and_data(
    own_data: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, table = own_data
    text.write_text(text.read_text(encoding="utf-8").replace("harbor", "hárbor"), encoding="utf-8")
    options = plans.TextOptions("hu", lowercase=False, strip_accents=False, keep_zwnj=True)
    plan = plans.plan_own_data([str(text)], str(table), None, "20", 40, ["table.text=review"], options)

    invoke_until_pretraining = partial(invoke_unless_pretraining, BusyError("the shards are complete"))

    with pytest.raises(BusyError, match="shards"):
        run_quickstart(tmp_path / "out", invoke_until_pretraining, plan, "cpu")
    assert "stripping accents" not in capsys.readouterr().err
    vocabulary = Vocabulary.load(tmp_path / "out" / "vocabulary")
    assert vocabulary.cleaning == Cleaning(lowercase=False, strip_accents=False)
    assert read_data_facts(tmp_path / "out" / "data").settings.language == "hu"
    with pytest.raises(BusyError, match="other options"):
        run_quickstart(tmp_path / "out", invoke_until_pretraining, replace(plan, text_options=plans.TextOptions()))


def test_quickstart_as_a_rank_is_rejected(
    own_data: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, table = own_data
    plan = plans.plan_own_data([str(text)], str(table), "1s", "20", 40, ["table.text=review"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="one process"):
        run_quickstart(tmp_path / "out", invoke_json, plan, "cpu")
    assert not (tmp_path / "out").exists()


def test_directory_of_another_plan_is_rejected(tmp_path: Path) -> None:
    for _ in range(2):
        _require_same_plan(tmp_path, plans.SMOKE)
        (tmp_path / "corpus.jsonl").touch()
    with pytest.raises(BusyError, match="other options"):
        _require_same_plan(tmp_path, plans.FULL)
    assert store.read_json(tmp_path / "quickstart-plan.json")["runs"] == 2
    assert inspect_directory(tmp_path).kind == "unfinished quickstart"


@pytest.mark.parametrize(("lowercase", "word", "size"), [(True, "harbor", 39), (False, "Harbor", 41)])
def test_masked_words_are_spelled_as_in_the_vocabulary(lowercase: bool, word: str, size: int, tmp_path: Path) -> None:
    words = ("Harbor", "Deck", "Wave", "Rail", "Sail", "Track", "Signal", "Boat")
    (tmp_path / "text.txt").write_text("\n\n".join(map(" ".join, permutations(words, 3))))
    settings = build_vocabulary.VocabularySettings(size=size, cleaning=Cleaning(lowercase=lowercase))
    build_vocabulary.build_vocabulary([str(tmp_path / "text.txt")], tmp_path / "vocabulary", settings)
    vocabulary = Vocabulary.load(tmp_path / "vocabulary")
    texts = [" ".join(["Harbor"] * count) for count in range(20)]
    masked = list(_mask_one_word(texts, vocabulary, 128))
    assert [len(text.split()) for text, _ in masked] == list(range(8, 17))
    assert {spelled for _, spelled in masked} == {word}
    assert len(list(_mask_one_word(texts, vocabulary, 12))) == 3, "8 to 10 tokens with [CLS] and [SEP]"


def test_quickstart_records_no_secrets_and_takes_renewed_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: Sequence[str]) -> store.JsonObject:
        assert any("?token=SECRET" in word for word in words)
        (tmp_path / "out" / "vocabulary").mkdir(exist_ok=True)
        raise BusyError("stopped")

    for secret in ("SECRET1", "SECRET2"):
        plan = replace(plans.SMOKE, bundled=None, text=(f"https://host/a.txt?token={secret}",))
        with pytest.raises(BusyError, match="stopped"):
            run_quickstart(tmp_path / "out", fail, plan)
    assert "SECRET" not in (tmp_path / "out" / "quickstart-plan.json").read_text(encoding="utf-8")
    printed = capsys.readouterr().err
    assert "https://host/a.txt?token=…" in printed and "SECRET" not in printed
