"""A small vocabulary trained on the Python manual, once for all tests of this folder."""

from pathlib import Path

import pytest

from albert_cli.text import build_vocabulary
from albert_cli.text.build_vocabulary import VocabularySettings
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.text_files import manual_paragraphs


@pytest.fixture(scope="session")
def vocabulary_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    # Four copies, because nothing is held out of fewer than 10,000 sentences.
    (folder / "manual.txt").write_text("\n\n".join(manual_paragraphs() * 4), encoding="utf-8")
    out = folder / "vocabulary"
    settings = VocabularySettings(2000, sample_size=12_000)
    build_vocabulary.build_vocabulary([str(folder / "manual.txt")], out, settings)
    return out


@pytest.fixture(scope="session")
def small_vocabulary(vocabulary_dir: Path) -> Vocabulary:
    return Vocabulary.load(vocabulary_dir)
