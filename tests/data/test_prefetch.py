"""Sampling ahead gives the same batches in the same order, raises errors at their step and leaves no thread."""

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
from tests.helpers.corpora import FakeVocabulary, assert_equal_batches, concatenate_batches, text_like_corpus
from tests.helpers.processes import PATIENCE

CORPUS = text_like_corpus(60, shards=3)
VOCABULARY = FakeVocabulary()
RULES = PairSettings(512)


def sample(step: int) -> PackedBatch:
    return sample_batch(CORPUS, VOCABULARY, RULES, 7, 8 * step + np.arange(8))


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@given(start=st.integers(0, 20), count=st.integers(0, 20), depth=st.integers(0, 5))
def test_prefetch_yields_every_step_in_order(start: int, count: int, depth: int) -> None:
    with prefetch(lambda step: step * step, range(start, start + count), depth) as results:
        assert list(results) == [step * step for step in range(start, start + count)]
    assert not prefetch_threads()


def test_prefetch_resumed_run_gets_the_same_batches() -> None:
    with prefetch(sample, range(9)) as batches:
        all_batches = list(batches)
    with prefetch(sample, range(5, 9)) as batches:  # as a run resumed at step 5 samples
        for expected, batch in zip(all_batches[5:], batches, strict=True):
            assert_equal_batches(expected, batch)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_prefetch_ranks_together_give_the_same_step(world_size: int) -> None:
    def sample_of_rank(rank: int) -> Iterator[PackedBatch]:
        def part(step: int) -> PackedBatch:
            return sample_batch(CORPUS, VOCABULARY, RULES, 7, np.array_split(8 * step + np.arange(8), world_size)[rank])

        with prefetch(part, range(3, 6)) as batches:
            yield from batches

    steps = zip(*map(sample_of_rank, range(world_size)), strict=True)
    for step, parts in zip(range(3, 6), steps, strict=True):
        assert_equal_batches(sample(step), concatenate_batches(parts))


def test_prefetch_samples_at_most_depth_steps_ahead() -> None:
    num_read = 0
    steps_ahead: list[int] = []
    sampled = threading.Semaphore(0)

    def sample_step(step: int) -> None:
        steps_ahead.append(step - num_read)
        sampled.release()

    with prefetch(sample_step, range(9), depth=3) as results:
        for _ in results:
            while len(steps_ahead) < min(num_read + 4, 9):
                assert sampled.acquire(timeout=PATIENCE)  # the thread samples three steps ahead by itself
            num_read += 1
    assert max(steps_ahead) == 3


def test_prefetch_error_is_raised_at_its_step() -> None:
    def fails(step: int) -> int:
        if step == 3:
            raise ValueError("step 3")
        return step

    results_seen = []
    with pytest.raises(ValueError, match="step 3"), prefetch(fails, range(10)) as results:
        for result in results:
            results_seen.append(result)
    assert results_seen == [0, 1, 2]
    assert not prefetch_threads()


def test_prefetch_consumer_error_drops_the_queue() -> None:
    sampled: list[int] = []

    def slow(step: int) -> None:
        time.sleep(0.05)
        sampled.append(step)

    with pytest.raises(KeyboardInterrupt), prefetch(slow, range(600), depth=500) as results:
        next(results)
        raise KeyboardInterrupt
    assert len(sampled) < 400  # without the cancellation, all 500 queued steps would be sampled
    assert not prefetch_threads()


def test_prefetch_overlaps_with_the_consumer() -> None:
    second_sampled = threading.Event()

    def sample_step(step: int) -> int:
        if step == 1:
            second_sampled.set()
        return step

    with prefetch(sample_step, range(2)) as results:
        assert next(results) == 0
        assert second_sampled.wait(PATIENCE), "step 1 is not sampled before the consumer requests it"
