"""What a state keeps, and that it is a value: nothing that comes later changes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.invariants.comparing import differences, require_mem_len, worst
from npxl.invariants.findings import Case, Finding, Inapplicable, InvariantBroken, Vacuous, check
from npxl.invariants.protocol import Implementation, MemoryStates, declared, offering
from npxl.invariants.reading import LONGEST, inputs_of, scores_of, segments, stretched

Array = NDArray[Any]


@check("memory")
def check_memory_update(implementation: MemoryStates, case: Case) -> Finding:
    """After q tokens, memory is the last M of the m old states and the q new ones, in this order.

    SG(h) of section 3.2.  Of E = ext_len tokens that will be read again nothing is kept yet: the
    length is min(M, m + max(0, q − E)).  Old states have moved up unchanged, bit by bit.  A new
    state is the one that is last in memory when the segment ends with its token, since states do
    not depend on later tokens; with an encoding of places, of the first slot alone.

    Broken by m and q that are mistaken for each other, a memory that grows beyond M or is cut to m
    or q, the first states in place of the last, states in another order or of another stream, and
    states of tokens that are read again.
    """
    mem_len, ext_len = require_mem_len(implementation), declared(implementation, "ext_len")
    # Where places are counted from a segment's end, what is computed from them depends on it.
    layers = slice(None if declared(implementation, "encodes_distances") else 1)
    enough = min(LONGEST, mem_len + ext_len + 1)  # for something to be forgotten
    case = replace(case, lengths=tuple(stretched(case.lengths, enough)))
    text = case.text(implementation)[:, :-1]
    state = implementation.start(case.batch_size)
    compared, largest, kept, forgotten = 0, 0.0, [], 0
    for start, stop in segments(case.lengths):
        inputs = inputs_of(implementation, text, start, stop)
        old = implementation.memory(state).copy()  # [N, B, m, d]
        _, after = scores_of(implementation, inputs, state)
        new = implementation.memory(after)
        end = old.shape[2] + max(0, inputs.shape[1] - ext_len)  # where what is kept ends
        length = min(mem_len, end)
        where = f"segment {start} to {stop}, with {old.shape[2]} states before"
        shape = (implementation.n_layer, case.batch_size, length, old.shape[3])
        if new.shape != shape:
            raise InvariantBroken(
                expected=f"a memory of shape [layers, streams, length, width] = {list(shape)}, "
                f"length min(M, m + max(0, q − E)) of M = {mem_len}, m = {old.shape[2]}, "
                f"q = {inputs.shape[1]}, E = {ext_len}",
                found=f"{list(new.shape)}",
                where=where,
                usually="m and q taken for each other, or a memory cut by its own length.",
            )
        compared, forgotten = compared + 1, forgotten + end - length
        n_old = max(0, old.shape[2] - (end - length))  # old states that stay
        if not np.array_equal(new[:, :, :n_old], old[:, :, old.shape[2] - n_old :]):
            raise InvariantBroken(
                expected=f"the last {n_old} of the old states, unchanged, as the first in memory",
                found="others",
                where=where,
                usually="states that are kept in another order, or the first in place of the last.",
            )
        for slot in range(n_old, length):
            token = slot + (end - length) - old.shape[2]  # of the inputs
            _, short = implementation.log_probs(inputs[:, : token + 1 + ext_len].copy(), state)
            last = implementation.memory(short)[layers, :, -1]  # [N, B, d]
            scale = max(1.0, float(np.abs(last).max()))
            apart = float(differences(new[layers, :, slot], last).max() / scale)
            largest, compared = max(largest, apart), compared + last.size
            if not apart <= implementation.tolerance:
                raise InvariantBroken(
                    expected=f"slot {slot} of {length} to be the state of input {token}, as when "
                    f"the segment ends there, to {implementation.tolerance:g}",
                    found=f"one that is off by {apart:.3g}",
                    where=where,
                    usually="the first states kept in place of the last, in another order, or of "
                    "tokens that are read again.",
                )
        kept.append(new.reshape(len(new), -1, new.shape[3]))  # [N, B · m, d]
        state = after
    states = np.concatenate(kept, axis=1)
    if mem_len and not (states != states[:, :1]).any():
        raise Vacuous("Nothing new is kept, or all states are the same, in any order.")
    if not forgotten:
        raise Vacuous(
            f"In {case.length} tokens a memory of {mem_len} forgets nothing: check a smaller one."
        )
    return Finding(largest, implementation.tolerance, "largest relative difference", compared)


@check()
def check_memory_is_constant(implementation: Implementation, case: Case) -> Finding:
    """A state is a value: reading with it, and writing to anything around it, changes nothing.

    The same segment from the same state has the same scores, bit by bit, after another segment was
    read from it; after the inputs, the scores that were returned, and the memory before were
    overwritten.  Inputs come back as they were.

    Broken by memory updated in place, by positions added to it where it lies, by states that are
    views of inputs, outputs or other states, and by a cache that belongs to the model.
    """
    rng = case.rng(3)
    vocab_size = implementation.vocab_size
    shape = (case.batch_size, max(2, case.lengths[0]))
    first, second, other = rng.integers(vocab_size, size=(3, *shape))
    start = implementation.start(case.batch_size)
    given = first.copy()
    returned, state = scores_of(implementation, given, start)
    _require_unchanged(given, first, "inputs")
    before = scores_of(implementation, second.copy(), state)[0].copy()
    if np.array_equal(implementation.log_probs(second.copy(), start)[0], before):
        if implementation.mem_len == 0 or implementation.window == 1:
            raise Inapplicable("It declares that no token depends on an earlier segment.")
        raise Vacuous("What was read before makes no difference here.")

    def same(after_what: str, usually: str) -> None:
        again = np.asarray(implementation.log_probs(second.copy(), state)[0])
        largest, where = worst(differences(again, before))
        if largest > 0:
            raise InvariantBroken(
                expected=f"the same scores from the same state after {after_what}, bit by bit",
                found=f"one that is off by {largest:.3g} nats",
                where=where,
                usually=usually,
            )

    implementation.log_probs(other.copy(), state)
    same("another segment was read from it", "a memory that is updated in place.")
    implementation.log_probs(other.copy(), implementation.start(case.batch_size))
    same("another text was begun", "a memory that belongs to the model, not to the state.")
    given[...] = other
    if isinstance(returned, np.ndarray) and returned.flags.writeable:
        returned[...] = 0
    same("inputs and scores were overwritten", "a state that is a view of inputs or of scores.")
    shows_memory = offering(implementation, "memory")
    if shows_memory is not None:
        _, later = implementation.log_probs(second.copy(), state)
        kept = np.array(shows_memory.memory(later))
        for earlier in (start, state):
            states = shows_memory.memory(earlier)
            if states.flags.writeable:
                states[...] = 1
            if earlier is start:
                same(
                    "the memory before it was overwritten",
                    "states that share storage, or a state that is written to where `memory` "
                    "returns a view of it and not a copy.",
                )
        _require_unchanged(shows_memory.memory(later), kept, "the memory of the next segment")
    return Finding(0.0, 0.0, "scores that changed", before.size)


def _require_unchanged(found: Array, expected: Array, what: str) -> None:
    if not np.array_equal(found, expected):
        raise InvariantBroken(
            expected=f"{what} as they were",
            found="others",
            where="the first segment",
            usually="arrays that are written to in place, or that share storage.",
        )
