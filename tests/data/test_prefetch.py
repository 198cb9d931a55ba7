"""Drawing ahead: the same batches in the same order, errors where they belong, nothing left running."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.data.batches import PackedBatch, sample_batch
from albert_cli.data.pairs import PairSettings
from albert_cli.data.prefetch import prefetch
from tests.data.synthetic import FakeVocabulary, concatenate, text_like_corpus
from tests.data.test_batches import assert_equal

CORPUS, VOCABULARY = text_like_corpus(60, shards=3), FakeVocabulary()
RULES = PairSettings(512, short_documents="once")


def draw(step: int) -> PackedBatch:
    return sample_batch(CORPUS, VOCABULARY, RULES, 7, 8 * step + np.arange(8))


def own_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@given(start=st.integers(0, 20), count=st.integers(0, 20), depth=st.integers(0, 5))
def test_every_step_comes_once_and_in_order(start: int, count: int, depth: int) -> None:
    with prefetch(lambda step: step * step, range(start, start + count), depth) as results:
        assert list(results) == [step * step for step in range(start, start + count)]
    assert not own_threads()


def test_a_resumed_run_gets_the_batches_that_it_would_have_got() -> None:
    with prefetch(draw, range(9)) as batches:
        whole = list(batches)
    with prefetch(draw, range(5, 9)) as batches:  # what a run does that starts from its checkpoint of step 5
        for expected, found in zip(whole[5:], batches, strict=True):
            assert_equal(expected, found)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_ranks_of_any_world_size_make_up_the_same_step(world_size: int) -> None:
    def rank_draws(rank: int) -> Iterator[PackedBatch]:
        def part(step: int) -> PackedBatch:
            return sample_batch(CORPUS, VOCABULARY, RULES, 7, np.array_split(8 * step + np.arange(8), world_size)[rank])

        with prefetch(part, range(3, 6)) as batches:
            yield from batches

    steps = zip(*map(rank_draws, range(world_size)), strict=True)
    for step, parts in zip(range(3, 6), steps, strict=True):
        assert_equal(draw(step), concatenate(parts))


def test_at_most_so_many_steps_are_drawn_ahead() -> None:
    drawn: list[int] = []
    with prefetch(drawn.append, range(100), depth=3) as results:
        for step, _ in zip(range(5), results, strict=False):
            time.sleep(0.01)
            assert len(drawn) <= step + 4
    assert len(drawn) < 10


def test_an_error_is_raised_at_its_own_step_and_ends_the_thread() -> None:
    def fails(step: int) -> int:
        if step == 3:
            raise ValueError("step 3")
        return step

    found = []
    with pytest.raises(ValueError, match="step 3"), prefetch(fails, range(10)) as results:
        for result in results:
            found.append(result)
    assert found == [0, 1, 2]
    assert not own_threads()


def test_an_error_of_the_consumer_drops_what_is_queued() -> None:
    drawn: list[int] = []

    def slow(step: int) -> None:
        time.sleep(0.05)
        drawn.append(step)

    with pytest.raises(KeyboardInterrupt), prefetch(slow, range(600), depth=500) as results:
        next(results)
        raise KeyboardInterrupt
    assert len(drawn) < 50  # of half a minute's work
    assert not own_threads()


def test_drawing_and_computing_overlap() -> None:
    begun = threading.Event()

    def second_waits(step: int) -> int:
        if step == 1:
            begun.set()
        return step

    with prefetch(second_waits, range(2)) as results:
        assert next(results) == 0
        assert begun.wait(600), "step 1 is drawn although nobody has asked for it"
