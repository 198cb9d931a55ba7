"""Computing ahead gives the same items in the same order, raises errors in their position and leaves no thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.data.batches import PackedBatch, sample_batch
from albert_cli.data.pairs import PairSettings
from albert_cli.data.run_ahead import run_ahead
from tests.helpers.corpora import FakeVocabulary, assert_equal_batches, concatenate_batches, text_like_corpus
from tests.helpers.processes import PATIENCE

CORPUS = text_like_corpus(60, shards=3)
VOCABULARY = FakeVocabulary()
RULES = PairSettings(512)


def sample(step: int) -> PackedBatch:
    return sample_batch(CORPUS, VOCABULARY, RULES, 7, 8 * step + np.arange(8))


def background_threads() -> set[threading.Thread]:
    """Return the running threads; those of earlier tests of `albert predict` may still wait for stdin."""
    return {thread for thread in threading.enumerate() if thread.name == "run_ahead"}


@given(start=st.integers(0, 20), count=st.integers(0, 20))
def test_run_ahead_yields_every_item_in_order(start: int, count: int) -> None:
    before = background_threads()
    assert list(run_ahead(range(start, start + count))) == list(range(start, start + count))
    assert background_threads() <= before


def test_run_ahead_resumed_run_gets_the_same_batches() -> None:
    all_batches = list(run_ahead(map(sample, range(9))))
    resumed = run_ahead(map(sample, range(5, 9)))  # as a run resumed at step 5 samples
    for expected, batch in zip(all_batches[5:], resumed, strict=True):
        assert_equal_batches(expected, batch)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_run_ahead_ranks_together_give_the_same_step(world_size: int) -> None:
    def sample_of_rank(rank: int) -> Iterator[PackedBatch]:
        def part(step: int) -> PackedBatch:
            return sample_batch(CORPUS, VOCABULARY, RULES, 7, np.array_split(8 * step + np.arange(8), world_size)[rank])

        return run_ahead(map(part, range(3, 6)))

    steps = zip(*map(sample_of_rank, range(world_size)), strict=True)
    for step, parts in zip(range(3, 6), steps, strict=True):
        assert_equal_batches(sample(step), concatenate_batches(parts))


def test_run_ahead_samples_at_most_two_steps_ahead() -> None:
    num_read = 0
    steps_ahead: list[int] = []
    sampled = threading.Semaphore(0)

    def sample_step(step: int) -> None:
        steps_ahead.append(step - num_read)
        sampled.release()

    for _ in run_ahead(map(sample_step, range(9))):
        while len(steps_ahead) < min(num_read + 3, 9):
            assert sampled.acquire(timeout=PATIENCE)  # the thread samples two steps ahead by itself
        num_read += 1
    assert max(steps_ahead) == 2


def test_run_ahead_error_is_raised_at_its_step() -> None:
    def fails(step: int) -> int:
        if step == 3:
            raise ValueError("step 3")
        return step

    before = background_threads()
    results_seen = []
    with pytest.raises(ValueError, match="step 3"):
        for result in run_ahead(map(fails, range(10))):
            results_seen.append(result)
    assert results_seen == [0, 1, 2]
    assert background_threads() <= before


def test_run_ahead_consumer_error_ends_the_thread() -> None:
    before = background_threads()
    with pytest.raises(KeyboardInterrupt), closing(run_ahead(itertools.count())) as numbers:
        assert next(numbers) == 0
        raise KeyboardInterrupt
    assert background_threads() <= before


def test_run_ahead_close_waits_for_the_running_item() -> None:
    before = background_threads()
    begun = threading.Event()
    is_computed = False

    def compute() -> Iterator[int]:
        nonlocal is_computed
        yield 0
        begun.set()
        time.sleep(0.2)
        is_computed = True
        yield 1

    with closing(run_ahead(compute())) as numbers:
        next(numbers)
        assert begun.wait(PATIENCE)
    assert is_computed and background_threads() <= before


def test_run_ahead_close_does_not_wait_for_an_endless_item() -> None:
    """As for the next line of stdin, which may never come."""
    before = background_threads()
    begun = threading.Event()
    line_arrives = threading.Event()

    def read() -> Iterator[int]:
        yield 0
        begun.set()
        line_arrives.wait()
        yield from itertools.count()

    with closing(run_ahead(read(), join_seconds=0.01)) as numbers:
        next(numbers)
        assert begun.wait(PATIENCE)
    (thread,) = background_threads() - before
    line_arrives.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_run_ahead_overlaps_with_the_consumer() -> None:
    second_sampled = threading.Event()

    def sample_step(step: int) -> int:
        if step == 1:
            second_sampled.set()
        return step

    with closing(run_ahead(map(sample_step, range(2)))) as results:
        assert next(results) == 0
        assert second_sampled.wait(PATIENCE), "step 1 is not sampled before the consumer requests it"
