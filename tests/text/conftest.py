"""A small vocabulary trained on the standard library's documentation, once for all tests of this folder."""

from pathlib import Path

import pytest

from albert_cli.text import build_vocabulary
from albert_cli.text.build_vocabulary import VocabularySettings
from albert_cli.text.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def vocabulary_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("text") / "vocabulary"
    build_vocabulary.build_vocabulary(["docs:stdlib"], out, VocabularySettings(2000, sample_size=12_000))
    return out


@pytest.fixture(scope="session")
def small_vocabulary(vocabulary_dir: Path) -> Vocabulary:
    return Vocabulary.load(vocabulary_dir)
