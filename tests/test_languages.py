"""The pipeline on small texts of sixteen languages; `tests.campaigns.languages` prints the figures as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.language_check import build_language, check_language, train_and_use
from tests.helpers.languages import LANGUAGE_CODES, has_spaces

WITHOUT_STOPS = ("thai",)  # it has no full stops, so long paragraphs are split at spaces


@pytest.mark.parametrize("language", LANGUAGE_CODES)
def test_pipeline_treats_every_language_alike(language: str, tmp_path: Path) -> None:
    report = check_language(language, tmp_path)
    assert report.unknown_tokens == 0
    assert report.different_ids == 0
    assert report.spans > 300
    if has_spaces(language):
        assert report.cut_words == 0
    if language in WITHOUT_STOPS:
        assert report.sentences_found > report.sentences_expected / 6, "a paragraph has six sentences"
    else:
        assert report.sentences_found == report.sentences_expected
    assert report.not_restored == 0


def test_pipeline_without_spaces_trains_and_fills_masks(tmp_path: Path) -> None:
    lines = build_language("khmer", tmp_path)
    filled, score = train_and_use(tmp_path, lines)
    assert filled
    assert 0 <= score <= 1
