"""Reading without gradients: the memory's keys and values stay projected between segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npxl.kernels.attend_one import attend_one
from npxl.layers.attention import AttentionWeights, attend_forward, score_scale
from npxl.layers.feed_forward import feed_forward_forward
from npxl.layers.layer_norm import layer_norm_forward
from npxl.layers.linear import linear_forward
from npxl.layers.positions import sinusoid
from npxl.layers.softmax import log_softmax, softmax_forward
from npxl.memory import selected
from npxl.models.checks import check_streams, checked_segment, checked_tokens
from npxl.threads import spread

if TYPE_CHECKING:
    from npxl.models.transformer_xl import TransformerXL

Array = NDArray[Any]


class TransformerXLReader:
    """Segments of B streams one after another, with the scores that `model.forward` gives.

    With constant weights, the keys W_k h and values W_v h of a cached state h are constants, and so
    is W_{k,R} R.  Kept instead of h, they need not be computed again for every segment: a token
    costs O(M · d) in attention beside its own O(d²), instead of O(M · d²).  Parameters must not
    change while a reader is used.

    Parameters
    ----------
    model
        What to read with.
    batch_size
        Streams B.
    """

    def __init__(self, model: TransformerXL, batch_size: int) -> None:
        self._model = model
        config = model.config
        memory = model.init_memory(batch_size)
        self._start, self._stop = 0, memory.length  # what of the buffers is remembered
        heads = (config.n_head, config.d_head)
        # Room for as much again as is remembered, so that moving it to the front is seldom.
        shape = (config.n_layer, batch_size, 2 * config.mem_len, *heads)
        self._keys: Array = np.empty(shape, model.dtype)  # [N, B, C, H, d_head]
        self._values: Array = np.empty(shape, model.dtype)
        self._relative: Array = np.empty((config.n_layer, 0, *heads), model.dtype)  # [N, K, H, …]
        for n, states in enumerate(memory.layers):
            x = states
            if config.pre_lnorm:
                norm = model.layer(model.params, n).attention_norm
                x, _ = layer_norm_forward(x, *norm, config.layer_norm_epsilon)
            self._project(n, x, slice(self._start, self._stop))

    def log_probs(self, inputs: Array) -> Array:
        """log p of every symbol after each of the inputs [B, q]: [B, q, V], in nats."""
        hidden = self._read(inputs)
        params = self._model.params
        return log_softmax(hidden, self._model.output_weight(params), params["softmax.bias"])

    def score(self, inputs: Array, targets: Array) -> Array:
        """Negative log-likelihood of the targets [B, T] of the last T of the inputs, in nats."""
        inputs, targets = checked_segment(inputs, targets, self._model.config.vocab_size)
        hidden = self._read(inputs)
        params = self._model.params
        scored = hidden[:, hidden.shape[1] - targets.shape[1] :]
        weight = self._model.output_weight(params)
        nll, _ = softmax_forward(scored, targets, weight, params["softmax.bias"])
        return nll

    def select(self, rows: Sequence[int] | slice | Array) -> None:
        """Go on with some of the streams, in the given order."""
        self._keys = selected(self._keys, rows).copy()
        self._values = selected(self._values, rows).copy()

    def _read(self, inputs: Array) -> Array:
        """Hidden states [B, q, d] of the next segment, which is remembered."""
        model, config = self._model, self._model.config
        inputs = checked_tokens("inputs", inputs, config.vocab_size)
        check_streams(inputs, self._keys.shape[1])
        n_new = inputs.shape[1]
        self._make_room(n_new)
        new = slice(self._stop, self._stop + n_new)
        seen = slice(self._start, new.stop)
        relative = self._relative_for(seen.stop - seen.start)
        h = model.embed(inputs)  # [B, q, d]
        for n in range(config.n_layer):
            h = self._layer(n, h, seen, new, relative[n])
        self._stop += max(0, n_new - config.ext_len)
        self._start = max(self._start, self._stop - config.mem_len)
        return h

    def _layer(self, n: int, h: Array, seen: slice, new: slice, relative: Array) -> Array:
        """`decoder_layer_forward` of layer n: h [B, q, d], relative [K, H, d_head]."""
        config, layer = self._model.config, self._model.layer(self._model.params, n)
        epsilon, weights = config.layer_norm_epsilon, layer.attention
        x = layer_norm_forward(h, *layer.attention_norm, epsilon)[0] if config.pre_lnorm else h
        self._project(n, x, new)
        query = linear_forward(x, weights.w_q).reshape(*x.shape[:2], config.n_head, -1)
        attended = self._attend(
            query, self._keys[n, :, seen], self._values[n, :, seen], relative, weights
        )
        h = h + linear_forward(attended.reshape(*x.shape[:2], -1), weights.w_o)
        h = h if config.pre_lnorm else layer_norm_forward(h, *layer.attention_norm, epsilon)[0]
        x = layer_norm_forward(h, *layer.feed_forward_norm, epsilon)[0] if config.pre_lnorm else h
        h = h + feed_forward_forward(x, layer.feed_forward)[0]
        if config.pre_lnorm:
            return h
        return layer_norm_forward(h, *layer.feed_forward_norm, epsilon)[0]

    def _attend(
        self, query: Array, key: Array, value: Array, relative: Array, weights: AttentionWeights
    ) -> Array:
        """[B, q, H, d_head] from queries of that shape and keys and values [B, K, H, d_head]."""
        batch_size, n_queries, n_heads, d_head = query.shape
        n_keys = key.shape[1]
        window = self._model.config.window(n_keys)
        if n_queries > 1:
            return attend_forward(query, key, value, relative, weights.u, weights.v, window)[0]
        nearest = slice(max(0, n_keys - window), n_keys)
        attended: Array = np.empty((batch_size, n_heads, d_head), key.dtype)
        scores: Array = np.empty((n_heads, nearest.stop - nearest.start), key.dtype)
        query_u, query_v = query[:, 0] + weights.u, query[:, 0] + weights.v

        def task(part: range) -> None:
            attend_one(
                query_u, query_v, key[:, nearest], value[:, nearest], relative[nearest],
                score_scale(query), (part.start, part.stop), scores, attended,
            )  # fmt: skip

        spread(task, n_heads, cost=3 * scores.size * d_head * batch_size)
        return attended[:, None]

    def _project(self, n: int, x: Array, where: slice) -> None:
        """Put the keys and values of x [B, q, d], layer n's normalised input, into the buffers."""
        weights = self._model.layer(self._model.params, n).attention
        shape = (*x.shape[:2], *self._keys.shape[3:])
        self._keys[n, :, where] = linear_forward(x, weights.w_k).reshape(shape)
        self._values[n, :, where] = linear_forward(x, weights.w_v).reshape(shape)

    def _make_room(self, n_new: int) -> None:
        """Move what is remembered to the front when n_new more do not fit behind it."""
        if self._stop + n_new <= self._keys.shape[2]:
            return
        length = self._stop - self._start
        buffers = []
        for old in (self._keys, self._values):
            buffer = old
            if length + n_new > old.shape[2]:
                shape = (*old.shape[:2], length + n_new, *old.shape[3:])
                buffer = np.empty(shape, old.dtype)
            buffer[:, :, :length] = old[:, :, self._start : self._stop]
            buffers.append(buffer)
        self._keys, self._values = buffers
        self._start, self._stop = 0, length

    def _relative_for(self, n_keys: int) -> Array:
        """W_{k,R} R of every layer for distances n_keys − 1 … 0: [N, K, H, d_head]."""
        if n_keys > self._relative.shape[1]:
            model, config = self._model, self._model.config
            longest = max(n_keys, config.mem_len + 1)
            positions = sinusoid(longest, config.d_model, config.clamp_len, model.dtype)
            shape = (longest, config.n_head, config.d_head)
            self._relative = np.stack([
                linear_forward(positions, model.layer(model.params, n).attention.w_r).reshape(shape)
                for n in range(config.n_layer)
            ])  # fmt: skip
        return self._relative[:, self._relative.shape[1] - n_keys :]
