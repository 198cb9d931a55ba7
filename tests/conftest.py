"""Fixtures that all tests share: the real data if available, and a small corpus, vocabulary and data set."""

from __future__ import annotations

import gc
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.helpers.tiny_recipe import RECIPE

if TYPE_CHECKING:
    from albert_cli.training.objectives import PretrainingJob

# A deadline a case and the check for slow cases measure how busy the machine is; pytest-timeout ends what hangs.
settings.register_profile("albert", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.load_profile("albert")

# One thread per process: the tests' matrices are tiny, and pytest-xdist uses the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# The Hub's libraries read this when they are imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def _holds_tests(folder: Path) -> bool:
    """Return True if the folder allows programs and has some free gigabytes."""
    if not folder.is_dir() or os.statvfs(folder).f_flag & os.ST_NOEXEC:
        return False
    return shutil.disk_usage(folder).free > 4 << 30


# What the program writes it flushes to the disk, file by file; in memory that takes no time.
if _holds_tests(Path("/dev/shm")):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/dev/shm")

SYLLABLES = ["ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "kra", "ste"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest single tests come first, so that none of them is left for the end."""
    longest = ("test_pages.py", "test_cluster.py", "test_agents.py", "test_campaigns.py", "test_ranks.py")
    items.sort(key=lambda item: item.path.name not in longest)


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection, which every fine-tuned model starts."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora, GLUE and SQuAD; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("ALBERT_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set ALBERT_TEST_DATA to the folder that holds corpus/ and glue/")
    return folder


def _document(rng: random.Random, words: list[str]) -> str:
    sentences = [
        " ".join(rng.choices(words, k=rng.randint(3, 12))).capitalize() + rng.choice(".?!")
        for _ in range(rng.randint(1, 9))
    ]
    return " ".join(sentences)


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """600 documents of one to nine sentences."""
    rng = random.Random(5)
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(600)]
    return [_document(rng, words) for _ in range(600)]


@pytest.fixture(scope="session")
def documents_file(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """The documents as one text file."""
    path = tmp_path_factory.mktemp("documents") / "all.txt"
    path.write_text("\n\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tiny_vocabulary(tmp_path_factory: pytest.TempPathFactory, documents_file: Path) -> Path:
    """A vocabulary of 300 pieces."""
    from albert_cli.text import build_vocabulary
    from albert_cli.text.build_vocabulary import VocabularySettings

    out = tmp_path_factory.mktemp("vocabulary") / "out"
    build_vocabulary.build([str(documents_file)], out, VocabularySettings(size=300))
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
    """A pretraining recipe of 30 steps of a few milliseconds."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def command(recipe: Path, tiny_data: Path) -> Sequence[object]:
    """`albert pretrain` of the recipe, but for --out."""
    return ("pretrain", recipe, "--data", tiny_data, "--device", "cpu")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, recipe: Path, tiny_data: Path) -> Path:
    """A run of the recipe that nothing interrupted; not to be changed."""
    from albert_cli.training.pretrain import pretrain

    out = tmp_path_factory.mktemp("run") / "out"
    pretrain(str(recipe), tiny_data, out, device="cpu")
    return out


@pytest.fixture
def make_job(recipe: Path, tiny_data: Path) -> Callable[..., PretrainingJob]:
    """Return a function that creates a pretraining job with changes to the recipe, as `train__seed=1`."""
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
        return PretrainingJob(model, resolved, PretrainingCorpora(train, heldout, vocabulary, 4.0))

    return make
