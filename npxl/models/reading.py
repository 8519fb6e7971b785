"""Reading without gradients: the memory's keys and values stay projected between segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.packing import pack_into, pack_transposed, pack_transposed_into, round_up
from npxl.kernels.vectors import TILE_COLUMNS
from npxl.layers.adaptive_softmax import adaptive_log_softmax, adaptive_softmax_forward
from npxl.layers.attention import PackedMemory, attend_packed
from npxl.layers.feed_forward import feed_forward_forward
from npxl.layers.layer_norm import layer_norm_forward
from npxl.layers.linear import linear_forward
from npxl.layers.positions import sinusoid
from npxl.memory import selected
from npxl.models.checks import check_streams, checked_segment, checked_tokens
from npxl.models.one_token import OneToken
from npxl.threads import spread

if TYPE_CHECKING:
    from npxl.models.transformer_xl import TransformerXL

Array = NDArray[Any]


class TransformerXLReader:
    """Segments of B streams one after another, with the scores that `model.forward` gives.

    With constant weights, the keys W_k h and values W_v h of a cached state h are constants, and so
    is W_{k,R} R.  Kept instead of h, they need not be computed again for every segment: a token
    costs O(M · d) in attention beside its own O(d²), instead of O(M · d²).  They are kept in the
    layout that attention's kernels want.  Parameters must not change while a reader is used.

    Parameters
    ----------
    model
        What to read with.
    batch_size
        Streams B.
    one_token
        Read a token that comes alone by kernels of its own; for comparison, as any other segment.
    """

    def __init__(self, model: TransformerXL, batch_size: int, one_token: bool = True) -> None:
        self._model = model
        config = model.config
        memory = model.init_memory(batch_size)
        self._start, self._stop = 0, memory.length  # what of the buffers is remembered
        # Room for as much again as is remembered, so that moving it to the front is seldom.
        self._keys_t, self._values = self._buffers(batch_size, 2 * config.mem_len)
        self._relative_t: Array = np.empty((config.n_layer, config.n_head, 0, 0, 0), model.dtype)
        self._n_distances = 0
        self._one = OneToken(model) if one_token else None
        for n, states in enumerate(memory.layers):
            self._project(n, self._normalized(n, states), 0, range(config.n_head), None)

    def log_probs(self, inputs: Array) -> Array:
        """log p of every symbol after each of the inputs [B, q]: [B, q, V], in nats."""
        hidden = self._read(inputs)
        return adaptive_log_softmax(hidden, self._model.softmax(self._model.params))

    def score(self, inputs: Array, targets: Array) -> Array:
        """Negative log-likelihood of the targets [B, T] of the last T of the inputs, in nats."""
        inputs, targets = checked_segment(inputs, targets, self._model.config.vocab_size)
        hidden = self._read(inputs)
        scored = hidden[:, hidden.shape[1] - targets.shape[1] :]
        clusters = self._model.softmax(self._model.params)
        return adaptive_softmax_forward(scored, targets, clusters)[0]

    def select(self, rows: Sequence[int] | slice | Array) -> None:
        """Go on with some of the streams, in the given order."""
        self._keys_t = selected(self._keys_t, rows).copy()
        self._values = selected(self._values, rows).copy()

    def _read(self, inputs: Array) -> Array:
        """Hidden states [B, q, d] of the next segment, which is remembered."""
        model, config = self._model, self._model.config
        inputs = checked_tokens("inputs", inputs, config.vocab_size)
        check_streams(inputs, self._keys_t.shape[1])
        batch_size, n_new = inputs.shape
        self._make_room(n_new)
        stop = self._stop + n_new
        self._have_distances(stop - self._start)
        h = model.embed(inputs)  # [B, q, d]
        for n in range(config.n_layer):
            if self._one is not None and batch_size == n_new == 1:
                self._one.read(n, h[0, 0], self._memory(n), (self._start, stop))
            else:
                h = self._layer(n, h, stop)
        self._stop += max(0, n_new - config.ext_len)
        self._start = max(self._start, self._stop - config.mem_len)
        return h

    def _layer(self, n: int, h: Array, stop: int) -> Array:
        """`decoder_layer_forward` of layer n: h [B, q, d], which ends at the buffers' `stop`."""
        config, layer = self._model.config, self._model.layer(self._model.params, n)
        epsilon = config.layer_norm_epsilon
        x = self._normalized(n, h)
        query: Array = np.empty((*h.shape[:2], config.n_head, config.d_head), h.dtype)
        attended = np.empty_like(query)
        seen, window = (self._start, stop), config.window(stop)

        def attend(heads: range) -> None:
            self._project(n, x, stop - x.shape[1], heads, query)
            attend_packed(query, self._memory(n), seen, layer.attention, window, heads, attended)

        n_keys = stop - self._start
        spread(attend, config.n_head, cost=3 * query.size * (config.d_model + n_keys))

        h = h + linear_forward(attended.reshape(*h.shape[:2], -1), layer.attention.w_o)
        h = h if config.pre_lnorm else layer_norm_forward(h, *layer.attention_norm, epsilon)[0]
        x = layer_norm_forward(h, *layer.feed_forward_norm, epsilon)[0] if config.pre_lnorm else h
        h = h + feed_forward_forward(x, layer.feed_forward)[0]
        if config.pre_lnorm:
            return h
        return layer_norm_forward(h, *layer.feed_forward_norm, epsilon)[0]

    def _memory(self, n: int) -> PackedMemory:
        return PackedMemory(
            self._keys_t[n], self._values[n], self._relative_t[n], self._n_distances
        )

    def _normalized(self, n: int, h: Array) -> Array:
        """What layer n projects of its input h."""
        config = self._model.config
        if not config.pre_lnorm:
            return h
        norm = self._model.layer(self._model.params, n).attention_norm
        return layer_norm_forward(h, *norm, config.layer_norm_epsilon)[0]

    def _project(self, n: int, x: Array, at: int, heads: range, query: Array | None) -> None:
        """Put some heads' keys and values of x [B, q, d] into the buffers, queries into `query`.

        x is layer n's normalised input.
        """
        d_head, weights = self._model.config.d_head, self._model.layer(self._model.params, n)
        rows = slice(heads.start * d_head, heads.stop * d_head)
        shape = (*x.shape[:2], len(heads), d_head)
        w_q, w_k, w_v, *_ = (weight[rows] for weight in weights.attention)
        if query is not None:
            query[:, :, heads.start : heads.stop] = linear_forward(x, w_q).reshape(shape)
        key = linear_forward(x, w_k).reshape(shape)
        value = linear_forward(x, w_v).reshape(shape)
        every = (0, len(heads))
        for b in range(len(x)):
            pack_transposed_into(self._keys_t[n, b], heads.start, at, key[b], every)
            pack_into(self._values[n, b], heads.start, at, value[b], every)

    def _buffers(self, batch_size: int, length: int) -> tuple[Array, Array]:
        """Room for keys [N, B, H, K′/C, D, C], values [N, B, H, K′, D′], K′ ≥ length."""
        config, dtype = self._model.config, self._model.dtype
        room = round_up(length, TILE_COLUMNS)
        shape = (config.n_layer, batch_size, config.n_head)
        width = round_up(config.d_head, TILE_COLUMNS)
        tiles = (room // TILE_COLUMNS, config.d_head, TILE_COLUMNS)
        return np.zeros((*shape, *tiles), dtype), np.zeros((*shape, room, width), dtype)

    def _make_room(self, n_new: int) -> None:
        """Move what is remembered to the front, in whole tiles, when n_new more do not fit."""
        if self._stop + n_new <= self._values.shape[3]:
            return
        first = self._start // TILE_COLUMNS  # of the tiles
        base = first * TILE_COLUMNS
        length = self._stop - base
        n_tiles = round_up(length, TILE_COLUMNS) // TILE_COLUMNS
        keys_t, values = self._keys_t, self._values
        if length + n_new > values.shape[3]:
            self._keys_t, self._values = self._buffers(keys_t.shape[1], length + n_new)
        self._keys_t[:, :, :, :n_tiles] = keys_t[:, :, :, first : first + n_tiles]
        self._values[:, :, :, :length] = values[:, :, :, base : base + length]
        self._start, self._stop = self._start - base, length

    def _have_distances(self, n_keys: int) -> None:
        """Have W_{k,R} R of every layer for the distances of n_keys keys, beyond clamp_len once."""
        model, config = self._model, self._model.config
        needed = max(n_keys, config.mem_len + 1)
        if config.clamp_len is not None:
            needed = min(needed, config.clamp_len + 1)
        if needed <= self._n_distances:
            return
        positions = sinusoid(needed, config.d_model, config.clamp_len, model.dtype)
        shape = (needed, config.n_head, config.d_head)
        heads = (0, config.n_head)
        self._relative_t = np.stack([
            pack_transposed(
                linear_forward(positions, model.layer(model.params, n).attention.w_r)
                .reshape(shape), heads
            )
            for n in range(config.n_layer)
        ])  # fmt: skip
        self._n_distances = needed
