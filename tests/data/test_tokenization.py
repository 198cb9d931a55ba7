from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.array_jobs import ArrayJob
from albert_cli.data.build import build_data
from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning, clean, clean_single_spaced
from albert_cli.text.sentences import split_sentences
from tests.helpers import failing_disk
from tests.helpers.data_directories import TENTH_HELD_OUT, WriteFiles, contents


@given(text=st.text(), lowercase=st.booleans())
def test_clean_single_spaced_equals_clean(text: str, lowercase: bool) -> None:
    cleaning = Cleaning(lowercase=lowercase)
    sentences = split_sentences(text)
    assert clean_single_spaced(sentences, cleaning) == [clean(sentence, cleaning) for sentence in sentences]


def test_load_finished_unit_failing_disk_removes_nothing(
    tiny_vocabulary: Path, write_files: WriteFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = write_files(2)
    out = tmp_path / "data"
    build_data(sources, tiny_vocabulary, out, TENTH_HELD_OUT, workers=1, array_job=ArrayJob(0, 2))
    before = contents(out / "shards")
    with monkeypatch.context() as patch:
        failing_disk.fail_calls(patch, "read", "shard.json")
        with pytest.raises(CheckpointError, match=r"shard\.json"):
            build_data(sources, tiny_vocabulary, out, TENTH_HELD_OUT, workers=1)
    assert contents(out / "shards") == before
