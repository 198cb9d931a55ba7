"""Settings and fixtures that all tests share.

The fixtures are the folder of real data, a small corpus with its vocabulary and token shards, and a pretraining run.
"""

from __future__ import annotations

import functools
import gc
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from albert_cli import machine
from tests.helpers.tiny_recipe import RECIPE

if TYPE_CHECKING:
    from albert_cli.training.objectives import PretrainingJob

# On a busy machine, Hypothesis's deadline per case and its check for slow cases would fail. pytest-timeout stops tests
# that hang.
settings.register_profile("albert", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.load_profile("albert")

# Variables of the user, of a scheduler or of a CI that would change what commands print or where they run.
_FOREIGN = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "NO_COLOR", "COLUMNS"}
_FOREIGN |= {"TERMINAL_WIDTH", "PYTHONWARNINGS", "HF_ENDPOINT"}
_FOREIGN_PREFIXES = ("SLURM_", "JOB_COMPLETION", "TORCHELASTIC_", "MASTER_", "WANDB_", "MLFLOW_", "TRACKIO_")
for _name in list(os.environ):
    if _name in _FOREIGN or _name.startswith(_FOREIGN_PREFIXES):
        del os.environ[_name]
# One thread per process: the tests' matrices are tiny, and pytest-xdist uses the cores.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# The Hub's libraries read this variable when they are imported.
os.environ["HF_HUB_OFFLINE"] = "1"


def _is_usable_for_tests(folder: Path) -> bool:
    """Return True if programs may run from the folder and it has more than 4 GiB of free space."""
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > 4 << 30


# `albert` flushes every file that it writes to the disk, which takes no time in a file system in memory.
if _is_usable_for_tests(Path("/dev/shm")):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

SYLLABLES = ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "kra", "ste"]


LONGEST = (
    "test_pages.py",
    "test_slurm.py",
    "test_campaigns.py",
    "test_ranks.py",
    "test_launch.py",
    "test_agents.py",
    "test_cluster.py",
)


@pytest.hookimpl(trylast=True)  # after pytest has removed the tests that -m excludes
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Distribute the files of `LONGEST` over the processes of pytest-xdist.

    Each process runs its part of these files first, so that at the end none runs a long file alone. pytest-xdist gives
    each process a contiguous part of the tests. A process that has finished its part takes tests from the end of
    another part.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    short = [item for item in items if item.path.name not in LONGEST]
    size = -(-len(short) // processes)
    ordered: list[pytest.Item] = []
    for process in range(processes):
        for name in LONGEST[process::processes]:
            ordered += [item for item in items if item.path.name == name]
        ordered += short[process * size : (process + 1) * size]
    items[:] = ordered


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection, which would scan them again and again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def few_resamples() -> Iterator[None]:
    """Compare models with 20 bootstrap samples instead of 200: scikit-learn takes a millisecond for a score."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("albert_cli.evaluation.differences._RESAMPLES", 20)
        yield


@pytest.fixture(scope="session", autouse=True)
def short_measurements() -> Iterator[None]:
    """Measure the matmul peak of `albert bench` with two matmuls per backend, and a dry run with two steps."""
    from albert_cli.training import plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine.measure_matmul_peak, "__kwdefaults__", {"seconds": 0.0})
        patch.setattr(plan, "_MIN_MEASUREMENT_SECONDS", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def cached_baselines() -> Iterator[None]:
    """Train linear models once for equal examples: most evaluations of the tests have the same few tables."""
    from albert_cli.evaluation import single
    from albert_cli.evaluation.baselines import BaselineOutcome, train_baselines
    from albert_cli.tasks.classification import Classification

    cache: dict[str, dict[str, BaselineOutcome]] = {}

    def train_once(task: Any, train: Sequence[Any], dev: Sequence[Any]) -> dict[str, BaselineOutcome]:
        is_classification = isinstance(task, Classification)  # no baseline is trained for other tasks
        key = repr((task.inputs, task.labels, task.metrics, train, dev)) if is_classification else ""
        if key not in cache:
            cache[key] = train_baselines(task, train, dev)
        return cache[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(single, "train_baselines", train_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def cached_tokenizer_json() -> Iterator[None]:
    """Build `tokenizer.json` once for equal vocabularies.

    A test that changes `SentencePieceVocabulary.proto` must not write the vocabulary with `copy_to`.
    """
    from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary

    cache: dict[object, str] = {}
    build = vars(SentencePieceVocabulary)["_tokenizer_json"].func

    def build_once(vocabulary: SentencePieceVocabulary) -> str:
        key = (vocabulary._model_bytes, vocabulary.cleaning)
        if key not in cache:
            cache[key] = build(vocabulary)
        return cache[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentencePieceVocabulary, "_tokenizer_json", property(build_once))
        yield


@pytest.fixture(scope="session", autouse=True)
def cached_versions() -> Iterator[None]:
    """Read the version of each library once; every run records them."""
    from albert_cli.training import run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "version", functools.cache(metadata.version))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora, GLUE and SQuAD; tests that need the folder are skipped if it does not exist."""
    folder = Path(os.environ.get("ALBERT_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set ALBERT_TEST_DATA to the folder that has corpus/ and glue/")
    return folder


def _sample_document(rng: random.Random, words: list[str]) -> str:
    sentences = [
        " ".join(rng.choices(words, k=rng.randint(3, 12))).capitalize() + rng.choice(".?!")
        for _ in range(rng.randint(1, 9))
    ]
    return " ".join(sentences)


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """600 documents of one to nine sentences of invented words."""
    rng = random.Random(5)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(600)]
    return [_sample_document(rng, words) for _ in range(600)]


@pytest.fixture(scope="session")
def documents_file(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """The documents as one text file, separated by blank lines."""
    path = tmp_path_factory.mktemp("documents") / "all.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_vocabulary(tmp_path_factory: pytest.TempPathFactory, documents_file: Path) -> Path:
    """A vocabulary of 300 pieces."""
    from albert_cli.text import build_vocabulary
    from albert_cli.text.build_vocabulary import VocabularySettings

    out = tmp_path_factory.mktemp("vocabulary") / "out"
    build_vocabulary.build_vocabulary([str(documents_file)], out, VocabularySettings(size=300))
    return out


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory, documents_file: Path, tiny_vocabulary: Path) -> Path:
    """A data directory of the documents, a tenth of them held out."""
    from albert_cli.data import build
    from albert_cli.data.records import BuildSettings

    out = tmp_path_factory.mktemp("data") / "out"
    build.build_data([str(documents_file)], tiny_vocabulary, out, BuildSettings(holdout=0.1), workers=1)
    return out


@pytest.fixture(scope="session")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a pretraining recipe with 30 steps of a few milliseconds each."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def command(recipe: Path, tiny_data: Path) -> Sequence[object]:
    """The arguments of `albert` that pretrain the recipe, without --out."""
    return ("pretrain", recipe, "--data", tiny_data, "--device", "cpu")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path) -> Path:
    """The directory of an uninterrupted run of the recipe; tests must not change it."""
    from albert_cli.training.pretrain import pretrain

    out = tmp_path_factory.mktemp("run") / "out"
    pretrain(str(recipe), tiny_data, out, device="cpu")
    return out


@pytest.fixture
def make_job(recipe: Path, tiny_data: Path) -> Callable[..., PretrainingJob]:
    """A function that creates a pretraining job; its arguments change the recipe: `train__seed=1` sets train.seed."""
    import torch

    from albert_cli import config
    from albert_cli.data.shards import TokenCorpus
    from albert_cli.model.heads import PretrainingModel
    from albert_cli.text.vocabulary import Vocabulary
    from albert_cli.training.objectives import PretrainingCorpora, PretrainingJob
    from albert_cli.training.pretrain_recipe import PretrainRecipe

    def make(**changes: object) -> PretrainingJob:
        overrides = [f"{key.replace('__', '.')}={value}" for key, value in changes.items()]
        resolved = config.load_recipe(PretrainRecipe, str(recipe), ["model.vocab_size=300", *overrides])
        torch.manual_seed(0)
        train, heldout = TokenCorpus.open(tiny_data, "train"), TokenCorpus.open(tiny_data, "heldout")
        vocabulary = Vocabulary.load(tiny_data)
        model = PretrainingModel(resolved.model)
        return PretrainingJob(model, resolved, PretrainingCorpora(train, heldout, vocabulary, unigram_entropy=4.0))

    return make
