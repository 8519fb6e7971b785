"""Workers against the model on the whole batch, and who gets how many threads."""

import os
import subprocess
import sys
import threading
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

from npxl import IGNORE, LSTMConfig, MaskKey, Memory, ModelConfig, NpxlError, threads
from npxl.config import with_options
from npxl.models.architectures import model_class
from npxl.models.segment_model import SegmentModel
from npxl.threads import Threads, available_cores, run_parallel, shards, spread
from npxl.training.workers import Workers

STEPS = 3


KINDS = {
    "transformer-xl": ModelConfig(
        vocab_size=11, n_layer=2, n_head=2, d_model=16, d_head=8, d_inner=24, mem_len=5,
        init_std=0.2,
    ),
    "lstm": LSTMConfig(vocab_size=11, n_layer=2, d_model=16, init_std=0.2),
}  # fmt: skip
KINDS["vanilla"] = replace(KINDS["transformer-xl"], mem_len=0, attn_type="al-rfou", clamp_len=9)
each_kind = pytest.mark.parametrize("kind", KINDS)


def tiny_model(dtype=np.float64, kind="transformer-xl", **changes) -> SegmentModel:
    """Changes of options that this kind has not are left out."""
    config = with_options(KINDS[kind], **changes)
    return model_class(config)(config, dtype=dtype)


def segments(batch_size, seed=0, length=4, ext_len=0):
    draw = np.random.default_rng(seed)
    for step in range(STEPS):
        context = ext_len if step else 0
        yield (
            draw.integers(0, 11, (batch_size, context + length)),
            draw.integers(0, 11, (batch_size, length)),
        )


def run_workers(model, batch_size, n_workers, ext_len=0, batch_chunk=1):
    """(nll, gradient) of each step, and the memory at the end."""
    results = []
    with Workers(model, batch_size, n_workers, batch_chunk) as workers:
        for step, batch in enumerate(segments(batch_size, ext_len=ext_len)):
            result = workers.step(*batch, MaskKey(7, step))
            results.append((result.nll, result.gradient.flat.copy()))
        return results, workers.memory


def run_whole(model, batch_size, ext_len=0):
    """The same without workers: the model's own mean and gradient of the whole batch."""
    results, memory = [], model.init_memory(batch_size)
    for step, batch in enumerate(segments(batch_size, ext_len=ext_len)):
        forward = model.forward(*batch, memory, rng=MaskKey(7, step))
        results.append((forward.nll.mean(), model.backward(forward).flat))
        memory = forward.memory
    return results, memory


@each_kind
@given(
    sizes=st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    n_workers=st.integers(1, 5),
    dropout=st.sampled_from([0.0, 0.3]),
    ext_len=st.sampled_from([0, 2]),
)
def test_any_number_of_workers_and_chunks_gives_the_whole_batchs_result(
    kind, sizes, n_workers, dropout, ext_len
):
    """Chunks and shards of one stream, of sizes that differ, and fewer of them than workers."""
    batch_size, batch_chunk = sizes
    model = tiny_model(kind=kind, dropout=dropout, dropatt=dropout, ext_len=ext_len)
    ext_len = model.config.ext_len
    expected, expected_memory = run_whole(model, batch_size, ext_len)
    results, memory = run_workers(model, batch_size, n_workers, ext_len, batch_chunk)
    for (nll, gradient), (expected_nll, expected_gradient) in zip(results, expected, strict=True):
        assert nll == pytest.approx(expected_nll, rel=1e-12)
        np.testing.assert_allclose(
            gradient, expected_gradient, rtol=0, atol=1e-12 * abs(expected_gradient).max()
        )
    np.testing.assert_allclose(memory.states, expected_memory.states, rtol=1e-12, atol=1e-12)


@each_kind
@given(sizes=st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_each_chunk_has_a_memory_of_its_own(kind, sizes):
    """Bit for bit what its streams give without the others."""
    batch_size, batch_chunk = sizes
    model = tiny_model(kind=kind)
    _, memory = run_workers(model, batch_size, 1, batch_chunk=batch_chunk)
    for chunk in shards(batch_size, batch_chunk):
        alone = model.init_memory(len(chunk))
        for step, (inputs, targets) in enumerate(segments(batch_size)):
            alone = model.forward(inputs[chunk], targets[chunk], alone, MaskKey(7, step)).memory
        np.testing.assert_array_equal(memory.select(list(chunk)).states, alone.states)


def peak_of_a_step(model, batch_size, n_workers, batch_chunk):
    """Bytes that exist at most beyond those that were there before a step."""
    draw = np.random.default_rng(0)
    inputs, targets = draw.integers(0, 11, (2, batch_size, 16))
    with Workers(model, batch_size, n_workers, batch_chunk) as workers:
        workers.step(inputs, targets, None)  # compiles, and fills the memory
        tracemalloc.start()
        try:
            workers.step(inputs, targets, None)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def test_more_chunks_take_less_memory():
    model = tiny_model(n_layer=4, d_inner=64, mem_len=4)
    peaks = {n: peak_of_a_step(model, 16, 1, n) for n in (1, 2, 4, 8)}
    of_all_streams = 2 * (peaks[1] - peaks[2])  # the rest does not depend on their number
    assert of_all_streams > 0.8 * peaks[1]
    for n in (4, 8):
        assert peaks[1] - peaks[n] == pytest.approx(of_all_streams * (1 - 1 / n), rel=0.05)
    # Two threads need not be at their peaks at once.
    assert peak_of_a_step(model, 16, 2, 8) < 0.4 * peaks[1]


@pytest.mark.parametrize("batch_chunk", [1, 2, 3])
@pytest.mark.parametrize("n_workers", [1, 2, 3])
@each_kind
def test_the_same_number_of_workers_and_chunks_gives_the_same_bits(kind, n_workers, batch_chunk):
    model = tiny_model(np.float32, kind, dropout=0.2)
    first, first_memory = run_workers(model, 5, n_workers, batch_chunk=batch_chunk)
    again, again_memory = run_workers(model, 5, n_workers, batch_chunk=batch_chunk)
    for (nll, gradient), (nll_again, gradient_again) in zip(first, again, strict=True):
        assert nll == nll_again
        np.testing.assert_array_equal(gradient, gradient_again)
    np.testing.assert_array_equal(first_memory.states, again_memory.states)


@pytest.mark.parametrize("n_workers", [1, 3])
@each_kind
def test_the_mean_is_that_of_the_targets_that_are_not_ignored(kind, n_workers):
    """However many of them each worker has."""
    model = tiny_model(kind=kind)
    (inputs, targets), *_ = segments(3)
    targets[0], targets[1, 1:] = IGNORE, IGNORE
    result = Workers(model, 3, n_workers).step(inputs, targets, None)
    fwd = model.forward(inputs, targets, model.init_memory(3))
    assert result.nll == pytest.approx(fwd.nll[targets != IGNORE].mean(), rel=1e-14)
    expected = model.backward(fwd).flat
    np.testing.assert_allclose(result.gradient.flat, expected, atol=1e-14, rtol=1e-12)
    result = Workers(model, 3, n_workers).step(inputs, np.full_like(targets, IGNORE), None)
    assert result.nll == 0
    assert not result.gradient.flat.any()


@each_kind
def test_memory_taken_out_and_put_back_continues_the_same(kind):
    model = tiny_model(kind=kind)
    batches = list(segments(3))
    with Workers(model, 3, 2) as workers:
        for batch in batches[:-1]:
            workers.step(*batch, None)
        memory = workers.memory
        expected = workers.step(*batches[-1], None).gradient.flat.copy()
    with Workers(model, 3, 2) as workers:
        workers.memory = memory
        np.testing.assert_array_equal(workers.memory.states, memory.states)
        np.testing.assert_array_equal(workers.step(*batches[-1], None).gradient.flat, expected)


def blas_threads() -> set[int]:
    return {
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    }


@pytest.mark.fault("numba #6933", "numba #6637", "threadpoolctl #1", "threadpoolctl #44")
def test_workers_side_by_side_have_one_blas_thread_each_and_give_the_limit_back():
    with threadpool_limits(2):
        before = blas_threads()
        barrier = threading.Barrier(2, timeout=60)  # so that both tasks do run at once

        def task():
            barrier.wait()
            return threading.get_ident(), blas_threads()

        results = run_parallel([task, task], 2)
        assert len({thread for thread, _ in results}) == 2
        assert all(threads == {1} for _, threads in results)
        assert blas_threads() == before
        with Workers(tiny_model(), 2, 2):
            assert blas_threads() == {1}
        assert blas_threads() == before


def test_a_single_task_has_helpers_instead_of_blas_threads():
    with threadpool_limits(2):
        (threads,) = run_parallel([blas_threads], 2)
        assert threads == {1}
        assert blas_threads() == {2}
    (parts,) = spread_parts(10, n_threads=2)
    assert len(parts) == 2


@pytest.mark.fault("numba #6933", "numba #6637", "threadpoolctl #1", "threadpoolctl #44")
def test_the_limit_comes_back_after_an_error():
    with threadpool_limits(2):
        with pytest.raises(ZeroDivisionError):
            run_parallel([lambda: 1 // 0, lambda: 1], 2)
        assert blas_threads() == {2}


def spread_parts(n, n_threads, n_tasks=1):
    """What `spread` makes of range(n) in each of the tasks: a dict of parts and their threads."""
    ran_in = []

    def task():
        parts = {}
        spread(lambda part: parts.update({part: threading.get_ident()}), n)
        ran_in.append(parts)

    with Threads(n_threads, n_tasks) as threads:
        threads.run([task] * n_tasks)
    return ran_in


@given(n=st.integers(1, 9), n_threads=st.integers(1, 4))
def test_a_single_task_is_spread_over_all_threads(n, n_threads):
    (parts,) = spread_parts(n, n_threads)
    assert sorted(parts, key=lambda part: part.start) == shards(n, n_threads)
    assert parts[shards(n, n_threads)[0]] == threading.get_ident()


def test_parts_of_a_task_run_side_by_side():
    barrier = threading.Barrier(3, timeout=60)
    with Threads(3, 1) as threads:
        threads.run([lambda: spread(lambda part: barrier.wait(), 3)])


def test_without_threads_to_spare_a_task_is_not_divided():
    here = threading.get_ident()
    whole = {}
    spread(lambda part: whole.update({part: threading.get_ident()}), 5)
    assert [whole] == spread_parts(5, 1) == [{range(5): here}]
    # Side by side, each of several tasks has one thread.
    for parts in spread_parts(5, 2, n_tasks=2):
        assert list(parts) == [range(5)]
        assert parts[range(5)] != here


def test_between_tasks_all_threads_are_there_for_the_parts_of_the_next():
    parts = []
    with Threads(3, 5) as threads:
        for _ in range(2):
            assert threads.run([threading.get_ident] * 5).count(threading.get_ident()) == 0
            spread(parts.append, 6)
    assert sorted(part.start for part in parts) == [0, 0, 2, 2, 4, 4]


def test_a_task_that_is_alone_is_spread_also_where_there_were_several_before():
    """As a chunk of one stream after a chunk of two."""
    here, parts = threading.get_ident(), {}

    def task():
        spread(lambda part: parts.update({part: threading.get_ident()}), 4)

    with Threads(2, 2) as threads:
        threads.run([threading.get_ident] * 2)
        threads.run([task])
    assert sorted(parts, key=lambda part: part.start) == [range(2), range(2, 4)]
    assert parts[range(2)] == here != parts[range(2, 4)]


@pytest.mark.parametrize("n_threads", [1, 2])
def test_nothing_may_be_spread_too(n_threads):
    assert spread_parts(0, n_threads) == [{range(0): threading.get_ident()}]


def test_threads_to_spare_are_given_back():
    with Threads(2, 1) as outer:
        with Threads(3, 1):
            pass
        parts = []
        outer.run([lambda: spread(parts.append, 6)])
        assert sorted(parts, key=lambda part: part.start) == [range(3), range(3, 6)]
    parts = []
    spread(parts.append, 6)
    assert parts == [range(6)]


def test_a_part_may_be_spread_again():
    """Nothing waits for a thread that waits for it."""
    entries = np.zeros((4, 5), int)

    def outer(rows):
        def inner(columns):
            entries[rows.start : rows.stop, columns.start : columns.stop] += 1

        spread(inner, 5)

    with Threads(3, 1) as threads:
        threads.run([lambda: spread(outer, 4)])
    assert (entries == 1).all()


@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_parts_of_any_number_give_the_same_bits(n_threads):
    x = np.random.default_rng(0).standard_normal((7, 100)).astype(np.float32)
    sums = np.full(7, np.nan, np.float32)

    def sum_rows(rows):
        for row in rows:
            sums[row] = np.cumsum(x[row])[-1]

    with Threads(n_threads, 1) as threads:
        threads.run([lambda: spread(sum_rows, 7)])
    np.testing.assert_array_equal(sums, np.cumsum(x, axis=1)[:, -1])


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("wrong", range(5))
def test_what_a_part_raises_reaches_the_caller(n_threads, wrong):
    def task(part):
        if wrong in part:
            raise ZeroDivisionError(f"at {wrong}")

    with Threads(n_threads, 1) as threads:
        with pytest.raises(ZeroDivisionError, match=f"at {wrong}"):
            threads.run([lambda: spread(task, 5)])
        done = []
        threads.run([lambda: spread(done.extend, 5)])  # and threads go on
        assert sorted(done) == list(range(5))


@pytest.mark.parametrize("wrong", [{0}, {2}, {0, 2}, {1, 2}])
def test_all_parts_have_ended_when_the_first_of_the_failing_ones_raises(wrong):
    ended = []

    def task(part):
        try:
            if part.start in wrong:
                raise ZeroDivisionError(f"at {part.start}")
            time.sleep(0.05)
        finally:
            ended.append(part.start)

    with Threads(3, 1):
        with pytest.raises(ZeroDivisionError, match=f"at {min(wrong)}"):
            spread(task, 3)
        assert sorted(ended) == [0, 1, 2]


def test_results_come_in_the_order_of_the_tasks():
    assert run_parallel([lambda i=i: i * i for i in range(10)], 3) == [i * i for i in range(10)]
    assert run_parallel([], 3) == []


@pytest.mark.parametrize("n_workers", [1, 2])
def test_an_error_in_a_worker_reaches_the_caller_and_workers_go_on_with_a_new_memory(n_workers):
    model = tiny_model()
    inputs, targets = next(segments(3))
    wrong = inputs.copy()
    wrong[2, 1] = 99  # a symbol that only the last shard sees
    with Workers(model, 3, n_workers) as workers:
        before = workers.step(inputs, targets, None).nll
        with pytest.raises(NpxlError, match="99"):
            workers.step(wrong, targets, None)
        workers.memory = model.init_memory(3)
        assert workers.step(inputs, targets, None).nll == before


def test_wrong_numbers_are_explained():
    model = tiny_model()
    with pytest.raises(NpxlError, match="number of workers is 0"):
        Workers(model, 2, 0)
    with pytest.raises(NpxlError, match="batch_size is 0"):
        Workers(model, 0, 1)
    for batch_chunk in (0, 4):
        with pytest.raises(NpxlError, match=f"batch_chunk is {batch_chunk}, but 3 streams"):
            Workers(model, 3, 1, batch_chunk)
    with Workers(model, 3, 2) as workers:
        with pytest.raises(NpxlError, match="2 rows of inputs"):
            workers.step(*next(segments(2)), None)
        with pytest.raises(NpxlError, match="4 streams"):
            workers.memory = Memory(np.zeros((2, 4, 1, 16)))


@given(n_streams=st.integers(1, 30), n_workers=st.integers(1, 9))
def test_shards_are_all_streams_in_their_order_and_about_equally_many(n_streams, n_workers):
    ranges = shards(n_streams, n_workers)
    assert [stream for each in ranges for stream in each] == list(range(n_streams))
    assert len(ranges) == min(n_streams, n_workers)
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


def test_there_is_at_least_one_core():
    assert available_cores() >= 1


@pytest.mark.parametrize("n_workers", [2, 3])
@each_kind
def test_a_single_stream_divided_among_helpers_gives_the_same(monkeypatch, kind, n_workers):
    model = tiny_model(kind=kind, dropout=0.2, dropatt=0.2)
    inputs, targets = next(segments(1, length=5))
    with Workers(model, 1, 1) as workers:
        alone = workers.step(inputs, targets, MaskKey(3))
        gradient = alone.gradient.flat.copy()
    monkeypatch.setattr(threads, "_WORTH_SPREADING", 1)
    with Workers(model, 1, n_workers) as workers:
        divided = workers.step(inputs, targets, MaskKey(3))
    assert divided.nll == pytest.approx(alone.nll, rel=1e-13)
    np.testing.assert_allclose(divided.gradient.flat, gradient, rtol=1e-11, atol=1e-14)


def test_helpers_warn_no_more_than_the_thread_they_help(recwarn):
    large = np.full((40, 3), 1e300)
    with threads.helpers(2), np.errstate(all="ignore"):
        spread(lambda part: large[part.start : part.stop] ** 2, 40)
    assert not recwarn.list


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_helpers_of_its_own():
    script = (
        "import os; from npxl.threads import helpers, spread\n"
        "def go():\n"
        "    done = []\n"
        "    with helpers(1): spread(lambda part: done.extend(part), 4)\n"
        "    return sorted(done) == [0, 1, 2, 3]\n"
        "assert go()\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if go() else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)


def test_few_multiplications_are_not_divided_into_more_parts_than_are_worth_it(monkeypatch):
    monkeypatch.setattr(threads, "_WORTH_SPREADING", 100)
    for cost, n_parts in ((99, 1), (199, 1), (200, 2), (399, 3), (10**6, 8), (None, 8)):
        parts = []
        with threads.helpers(7):
            spread(parts.append, 64, cost=cost)
        assert len(parts) == n_parts


def test_a_part_is_not_divided_again():
    parts = []
    with threads.helpers(3):
        spread(lambda part: spread(parts.append, len(part)), 8)
        assert sorted(map(len, parts)) == [2, 2, 2, 2]
        spread(parts.append, 4)  # but what comes after it is
    assert len(parts) == 8
