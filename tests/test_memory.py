"""Memory: what it keeps, and that nothing can reach into it."""

import copy
import gc
import pickle
import weakref
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npxl import Memory, ModelConfig, NpxlError, TransformerXL

N_LAYER, D_MODEL = 2, 4


def numbered(length, batch_size=2, offset=0, dtype=np.float64, n_layer=N_LAYER):
    """States [n_layer, B, length, d] in which every number is different."""
    shape = (n_layer, batch_size, length, D_MODEL)
    return (np.arange(np.prod(shape)).reshape(shape) + offset).astype(dtype)


def naive_update(old, new, mem_len, ext_len):
    """One position at a time: append all but the last ext_len, drop from the front."""
    positions = [old[:, t] for t in range(old.shape[1])]
    for t in range(new.shape[1]):
        if t < new.shape[1] - ext_len:
            positions.append(new[:, t])
    while len(positions) > mem_len:
        positions.pop(0)
    return positions


@pytest.mark.fault("KY #59", "KY #118", "KY #96", "HF #2970", "HF #3580")
@given(
    m=st.integers(0, 7),
    q=st.integers(1, 7),
    mem_len=st.integers(0, 9),
    ext_len=st.integers(0, 8),
    batch_size=st.integers(1, 3),
    dtype=st.sampled_from([np.float32, np.float64]),
    n_layer=st.integers(1, 3),
)
def test_the_update_keeps_what_one_position_at_a_time_keeps(
    m, q, mem_len, ext_len, batch_size, dtype, n_layer
):
    old = numbered(m, batch_size, 0, dtype, n_layer)
    new = numbered(q, batch_size, 1000, dtype, n_layer)
    memory = Memory(old).updated(list(new), mem_len, ext_len)
    assert memory.length == min(mem_len, m + max(0, q - ext_len))
    assert memory.states.dtype == dtype
    for slot in range(n_layer):
        expected = naive_update(old[slot], new[slot], mem_len, ext_len)
        assert memory.length == len(expected)
        for t, position in enumerate(expected):
            np.testing.assert_array_equal(memory.layers[slot][:, t], position)


@pytest.mark.fault("dhruvramani/Transformers-RL #7", "HF #1235")
@pytest.mark.parametrize(
    ("m", "q", "ext_len", "mem_len", "kept"),
    [
        # m cached positions are a0, a1, …; q new ones b0, b1, …
        (3, 2, 0, 4, "a1 a2 b0 b1"),
        (3, 2, 0, 8, "a0 a1 a2 b0 b1"),
        (0, 6, 2, 8, "b0 b1 b2 b3"),
        (5, 6, 2, 8, "a1 a2 a3 a4 b0 b1 b2 b3"),
        (3, 2, 2, 3, "a0 a1 a2"),
        (3, 2, 5, 2, "a1 a2"),
        (3, 4, 1, 2, "b1 b2"),
        (3, 4, 0, 0, ""),
    ],
)
def test_examples_of_the_update_rule(m, q, ext_len, mem_len, kept):
    old, new = numbered(m, offset=0), numbered(q, offset=1000)
    memory = Memory(old).updated(list(new), mem_len, ext_len)
    named = {f"a{t}": old[:, :, t] for t in range(m)} | {f"b{t}": new[:, :, t] for t in range(q)}
    expected = [named[name] for name in kept.split()]
    assert memory.length == len(expected)
    for t, position in enumerate(expected):
        np.testing.assert_array_equal(memory.states[:, :, t], position)


def test_without_ext_len_no_token_is_read_again():
    memory = Memory(numbered(2)).updated(list(numbered(3)), 9)
    assert memory.length == 5


WAYS_TO_MAKE_ONE = {
    "new": lambda states, new: Memory(states),
    "updated": lambda states, new: Memory(states).updated(list(new), 6),
    "updated, all from the segment": lambda states, new: Memory(states).updated(list(new), 2),
    "updated, all from before": lambda states, new: Memory(states).updated(list(new), 4, 3),
    "selected": lambda states, new: Memory(states).select([1, 0]),
    "selected by a slice": lambda states, new: Memory(states).select(slice(0, 2)),
    "concatenated": lambda states, new: Memory.concatenate([Memory(states), Memory(states)]),
    "concatenated alone": lambda states, new: Memory.concatenate([Memory(states)]),
    "copied deeply": lambda states, new: copy.deepcopy(Memory(states)),
    "unpickled": lambda states, new: pickle.loads(pickle.dumps(Memory(states))),
    "of a transposed array": lambda states, new: Memory(states.transpose(0, 2, 1, 3)),
    "of an array in another order": lambda states, new: Memory(new),
}


@pytest.mark.parametrize("way", WAYS_TO_MAKE_ONE)
def test_states_are_a_read_only_contiguous_copy(way):
    # As a model makes it: the segment's states are slices of larger arrays in another order.
    sources = states, new = numbered(5), np.asfortranarray(numbered(3, offset=1000))
    memory = WAYS_TO_MAKE_ONE[way](states, new)
    before = memory.states.copy()
    assert memory.states.flags.c_contiguous
    assert not memory.states.flags.writeable
    assert memory.states.base is None, "a view could be written through its base"
    for source in sources:
        assert not np.shares_memory(memory.states, source)
        source[...] = np.nan
    np.testing.assert_array_equal(memory.states, before)
    for array in (memory.states, *memory.layers):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(AttributeError):
        memory.states = before


@pytest.mark.fault("HF #9129")
def test_layers_are_the_slots_in_order():
    memory = Memory(numbered(3))
    assert len(memory.layers) == N_LAYER
    for slot, layer in enumerate(memory.layers):
        np.testing.assert_array_equal(layer, numbered(3)[slot])


@given(rows=st.lists(st.integers(0, 3), max_size=6), length=st.integers(0, 3))
def test_select_takes_streams_in_the_given_order(rows, length):
    states = numbered(length, batch_size=4)
    selected = Memory(states).select(rows)
    assert selected.batch_size == len(rows)
    for b, row in enumerate(rows):
        np.testing.assert_array_equal(selected.states[:, b], states[:, row])


@given(cuts=st.sets(st.integers(1, 4)), length=st.integers(0, 3))
def test_concatenate_undoes_select(cuts, length):
    memory = Memory(numbered(length, batch_size=5))
    bounds = [0, *sorted(cuts), 5]
    parts = [memory.select(slice(a, b)) for a, b in pairwise(bounds)]
    np.testing.assert_array_equal(Memory.concatenate(parts).states, memory.states)


def test_memories_of_unequal_length_are_not_concatenated():
    with pytest.raises(NpxlError, match=r"lengths \[2, 3\]"):
        Memory.concatenate([Memory(numbered(2)), Memory(numbered(3))])


@pytest.mark.parametrize(
    ("states", "fact"),
    [
        (np.zeros((2, 3)), r"shape \(2, 3\)"),
        (np.zeros((2, 3, 4, 5), int), "type int64"),
        ([[[[0.0]]]], "of type list"),
    ],
)
def test_states_are_floating_point_numbers_on_four_axes(states, fact):
    with pytest.raises(NpxlError, match=rf"states is .*{fact}.*-point numbers \[n_layer, batch,"):
        Memory(states)


@pytest.mark.parametrize("rows", [[5], [0, -4], 1, [0.5], "all", [True, False]])
def test_streams_that_there_are_not_cannot_be_selected(rows):
    with pytest.raises(NpxlError, match=r"rows are .*streams, 0 to 2"):
        Memory(numbered(2, batch_size=3)).select(rows)


@pytest.mark.parametrize(
    ("hidden", "fact"),
    [
        ([], r"\[\]"),
        (list(numbered(3))[:1], r"\[an array of shape \(2, 3, 4\) and type float64\]"),
        ([numbered(3)[0], numbered(2)[1]], r"type float64, an array of shape \(2, 2, 4\)"),
        (list(numbered(3, batch_size=1)), r"shape \(1, 3, 4\)"),
        (list(numbered(3)[..., :2]), r"shape \(2, 3, 2\)"),
        (list(numbered(3, dtype=np.float32)), "type float32"),
        (numbered(3).tolist(), "of type list"),
        ([np.zeros(4)] * 2, r"shape \(4,\)"),
    ],
)
def test_states_that_do_not_continue_a_memory_are_an_error_with_the_facts(hidden, fact):
    with pytest.raises(NpxlError, match=f"hidden is .*{fact}") as error:
        Memory(numbered(2)).updated(hidden, mem_len=4)
    assert "2 arrays of shape (2, q, 4) and type float64" in str(error.value)


def test_a_memory_keeps_nothing_else_alive():
    old = Memory(numbered(3))
    hidden = list(numbered(4))
    dead = [weakref.ref(old.states), *(weakref.ref(states) for states in hidden)]
    memory = old.updated(hidden, 5)
    picked = memory.select([0])
    dead.append(weakref.ref(memory.states))
    del old, hidden, memory
    gc.collect()
    assert [ref() for ref in dead] == [None] * len(dead)
    assert picked.length == 5


@pytest.mark.fault("dhruvramani/Transformers-RL #7")
@pytest.mark.parametrize("mem_len", [0, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_initial_memory_is_empty_or_zeros(mem_len, dtype):
    shape = dict(vocab_size=3, n_layer=2, n_head=1, d_model=4, d_head=2, d_inner=2)
    for kind, length in (("empty", 0), ("zeros", mem_len)):
        config = ModelConfig(**shape, mem_len=mem_len, initial_memory=kind)
        memory = TransformerXL(config, dtype=dtype).init_memory(5)
        assert memory.states.shape == (2, 5, length, 4)
        assert memory.states.dtype == dtype
        assert not memory.states.any()


def test_repr_states_the_facts():
    assert repr(Memory(numbered(3))) == (
        "Memory(n_layer=2, batch_size=2, length=3, d_model=4, float64)"
    )
