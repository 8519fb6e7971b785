"""What reading computes for a token, counted instead of timed."""

from unittest import mock

import numpy as np
import pytest

from npxl import ModelConfig, TransformerXL
from npxl.models import reading


def work_per_token(mem_len, n_tokens, start="zeros"):
    """For each token: rows that go through linear maps, and keys that a query meets, layer sums."""
    config = ModelConfig(
        vocab_size=11, n_layer=2, n_head=2, d_model=8, d_head=4, d_inner=8, mem_len=mem_len,
        initial_memory=start,
    )  # fmt: skip
    reader = TransformerXL(config).reader(1)
    reader.log_probs(np.zeros((1, 1), int))  # fills what is computed once: W_{k,R} R
    rows, keys = [], []
    linear, attend = reading.linear_forward, reading.attend_one

    def counted_linear(x, *weights):
        rows[-1] += x.size // x.shape[-1]
        return linear(x, *weights)

    def counted_attend(query_u, query_v, key, *rest):
        keys[-1] += key.shape[1]
        return attend(query_u, query_v, key, *rest)

    with (
        mock.patch.object(reading, "linear_forward", counted_linear),
        mock.patch.object(reading, "attend_one", counted_attend),
    ):
        for n in range(n_tokens):
            rows.append(0)
            keys.append(0)
            reader.log_probs(np.full((1, 1), n % 11))
    return rows, keys, reader


@pytest.mark.parametrize("mem_len", [1, 5, 40])
def test_a_token_costs_its_own_projections_and_a_look_at_the_memory(mem_len):
    rows, keys, _ = work_per_token(mem_len, 3 * mem_len + 2)
    assert set(rows) == {2 * 4}  # W_q, W_k, W_v and W_o of two layers, for one row each
    assert set(keys) == {2 * (mem_len + 1)}  # linear in M


def test_the_cost_does_not_grow_with_what_has_been_read():
    rows, keys, reader = work_per_token(6, 100, start="empty")
    size = reader._keys.nbytes
    assert keys[5:] == [2 * 7] * 95
    assert len(set(rows)) == 1
    for _ in range(50):
        reader.log_probs(np.zeros((1, 1), int))
    assert reader._keys.nbytes == size
