"""Which tensor of the PyTorch implementations is which of npxl's; docs/weights.md has the table.

The original code and Hugging Face's TransfoXL, which was made from it, have the same names but for
a prefix, and differ in the order of the clusters' rows and in where shared biases are listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.config import ModelConfig
from npxl.errors import NpxlError
from npxl.interop.state_dicts import StateDict
from npxl.layers.positions import frequencies
from npxl.models.transformer_xl import TransformerXL
from npxl.params import Params

Array = NDArray[Any]


@dataclass(frozen=True)
class Dialect:
    """What sets an implementation's state dict apart."""

    prefix: str
    """Of all names but those of the output layer."""
    repeats_biases: bool
    """Whether biases u and v that all layers share are listed under each layer as well."""
    reverses_clusters: bool
    """Whether the first row of the cluster weights is the last cluster's."""


HUGGING_FACE = Dialect("transformer.", repeats_biases=True, reverses_clusters=False)
ORIGINAL = Dialect("", repeats_biases=False, reverses_clusters=True)


class Part(NamedTuple):
    """What one of npxl's tensors is of one of theirs."""

    ours: str
    rows: slice = slice(None)  # of npxl's
    at: slice | int = slice(None)  # rows of theirs, or one of them


class Tensor(NamedTuple):
    """One of their tensors."""

    names: tuple[str, ...]
    """It is written under the first; a file may have others besides or instead."""
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    """Which together are all of it."""
    constant: Array | None = None
    """The value of a tensor that is no parameter; a file may lack it."""

    def pairs(
        self, params: Mapping[str, Array], theirs: Mapping[str, Array]
    ) -> Iterator[tuple[Array, Array]]:
        """Views of npxl's tensors, and the views of theirs, under any name, that correspond.

        Of parameters or of their gradients.
        """
        name = next(name for name in self.names if name in theirs)
        for part in self.parts:
            view = theirs[name][part.at]
            yield params[part.ours][part.rows].reshape(view.shape), view


def tensors(config: ModelConfig, dialect: Dialect) -> list[Tensor]:
    """All tensors of their state dict for a configuration."""
    found, whole = [], _Whole(TransformerXL.parameter_shapes(config))
    if config.attn_type in ("dai", "vaswani"):
        omega = frequencies(config.d_model)
        found.append(Tensor((f"{dialect.prefix}pos_emb.inv_freq",), omega.shape, (), omega))
    for n in range(config.n_layer):
        found += _layer(config, n, f"{dialect.prefix}layers.{n}", whole)
    found += _of_all_layers(config, dialect, whole)
    return found + _embedding_and_softmax(config, dialect, whole)


@dataclass(frozen=True)
class _Whole:
    """Makes the entries of tensors that are one of npxl's, of these shapes."""

    shapes: dict[str, tuple[int, ...]]

    def __call__(self, ours: str, *names: str, rows: slice = slice(None)) -> Tensor:
        return Tensor(names, self.shapes[ours], (Part(ours, at=rows),))


def _of_all_layers(config: ModelConfig, dialect: Dialect, whole: _Whole) -> list[Tensor]:
    """Biases and tables that are not in the layers."""
    prefix, layers = dialect.prefix, range(config.n_layer)
    if config.shares_biases:
        named_again = layers if dialect.repeats_biases else ()
        return [
            whole(
                f"attention.{ours}",
                f"{prefix}{theirs}",
                *(f"{prefix}layers.{n}.dec_attn.{theirs}" for n in named_again),
            )
            for ours, theirs in (("u", "r_w_bias"), ("v", "r_r_bias"))
        ]
    heads = (config.n_head, config.d_head)
    learned: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
        "shaw": {
            "r_w_bias": ("attention.u", heads),
            "r_emb": ("attention.relative", (config.n_learned, *heads)),
            "r_bias": ("attention.relative_bias", (config.n_learned, config.n_head)),
        },
        "al-rfou": {"r_emb": ("position", (config.n_learned, *heads))},  # d_model, cut into heads
    }
    return [
        Tensor(
            (f"{prefix}{theirs}",),
            (config.n_layer, *shape),
            tuple(Part(f"layers.{n}.{ours}", at=n) for n in layers),
        )
        for theirs, (ours, shape) in learned.get(config.attn_type, {}).items()
    ]


def _layer(config: ModelConfig, n: int, theirs: str, whole: _Whole) -> list[Tensor]:
    ours, attention, feed_forward = f"layers.{n}", f"{theirs}.dec_attn", f"{theirs}.pos_ff"
    if config.encodes_distances:
        found = [_stacked(f"{attention}.qkv_net.weight", ours, ("w_q", "w_k", "w_v"), whole)]
    else:
        found = [
            _stacked(f"{attention}.q_net.weight", ours, ("w_q",), whole),
            _stacked(f"{attention}.kv_net.weight", ours, ("w_k", "w_v"), whole),
        ]
    names = {
        "attention.w_o": f"{attention}.o_net.weight",
        "attention_norm.gain": f"{attention}.layer_norm.weight",
        "attention_norm.bias": f"{attention}.layer_norm.bias",
        "feed_forward.w_1": f"{feed_forward}.CoreNet.0.weight",
        "feed_forward.b_1": f"{feed_forward}.CoreNet.0.bias",
        "feed_forward.w_2": f"{feed_forward}.CoreNet.3.weight",
        "feed_forward.b_2": f"{feed_forward}.CoreNet.3.bias",
        "feed_forward_norm.gain": f"{feed_forward}.layer_norm.weight",
        "feed_forward_norm.bias": f"{feed_forward}.layer_norm.bias",
    }
    if config.attn_type == "dai":
        names["attention.w_r"] = f"{attention}.r_net.weight"
    if config.untie_r:
        names |= {"attention.u": f"{attention}.r_w_bias", "attention.v": f"{attention}.r_r_bias"}
    return found + [whole(f"{ours}.{name}", theirs) for name, theirs in names.items()]


def _stacked(name: str, layer: str, ours: tuple[str, ...], whole: _Whole) -> Tensor:
    """Projections of one layer, one below another."""
    width, d_model = whole.shapes[f"{layer}.attention.{ours[0]}"]
    parts = tuple(
        Part(f"{layer}.attention.{w}", at=slice(i * width, (i + 1) * width))
        for i, w in enumerate(ours)
    )
    return Tensor((name,), (len(ours) * width, d_model), parts)


def _embedding_and_softmax(config: ModelConfig, dialect: Dialect, whole: _Whole) -> list[Tensor]:
    """Both ends; what is tied is one tensor under a name of either."""
    embedding, found = f"{dialect.prefix}word_emb", []
    clusters = range(len(config.clusters))
    is_tied = config.tie_projs or (False,) * len(clusters)
    one_width = config.div_val == 1
    for i in clusters[:1] if one_width else clusters:
        dot_i = "" if one_width else f".{i}"
        table, output = f"{embedding}.emb_layers.{i}.weight", f"crit.out_layers.{i}.weight"
        if config.tie_weight:
            found.append(whole(f"embedding{dot_i}.weight", table, output))
        else:
            found.append(whole(f"embedding{dot_i}.weight", table))
            found.append(whole(f"softmax{dot_i}.weight", output))
        symbols = range(config.vocab_size) if one_width else config.clusters[i]
        bias = Part("softmax.bias", rows=slice(symbols.start, symbols.stop))
        found.append(Tensor((f"crit.out_layers.{i}.bias",), (len(symbols),), (bias,)))
        if config.has_projections:
            projected = clusters if one_width else clusters[i : i + 1]
            tied = (f"crit.out_projs.{j}" for j in projected if is_tied[j])
            found.append(whole(f"embedding{dot_i}.projection", f"{embedding}.emb_projs.{i}", *tied))
    if config.has_projections:
        found += [
            whole(f"softmax.{i}.projection", f"crit.out_projs.{i}")
            for i in clusters
            if not is_tied[i]
        ]
    if config.cutoffs:
        order = slice(None, None, -1) if dialect.reverses_clusters else slice(None)
        found += [
            whole(f"softmax.{name}", f"crit.{name}", rows=order)
            for name in ("cluster_weight", "cluster_bias")
        ]
    return found


def read_model(state: StateDict, config: ModelConfig, dialect: Dialect) -> TransformerXL:
    """The model whose tensors these are, copied one after another.

    Half precision becomes single, which holds it exactly.

    Raises
    ------
    NpxlError
        For a tensor that is missing, left over, of another shape or no floating-point numbers, for
        two that differ though they should be one, and for a constant of another value.
    """
    table = tensors(config, dialect)
    _check_names(state, table)
    dtype = np.result_type(np.float32, *(spec.dtype for spec in state.specs.values()))
    params = Params(TransformerXL.parameter_shapes(config), dtype=dtype)
    for tensor in table:
        names = [name for name in tensor.names if name in state.specs]
        theirs = {name: state[name] for name in names[:1]}
        for name in names[1:]:
            if not np.array_equal(state[name], theirs[names[0]], equal_nan=True):
                raise NpxlError(
                    f"{state.path}: {name} and {names[0]} differ, but its configuration ties them, "
                    "so that they are one tensor; correct the configuration or the file."
                )
        if tensor.constant is not None:
            _check_constant(state, theirs, tensor.constant)
            continue
        for ours, part in tensor.pairs(params, theirs):
            ours[...] = part
    return TransformerXL(config, params=params)


def _check_names(state: StateDict, table: list[Tensor]) -> None:
    missing = [
        tensor.names[0]
        for tensor in table
        if tensor.constant is None and not any(name in state.specs for name in tensor.names)
    ]
    shapes = {name: tensor.shape for tensor in table for name in tensor.names}
    left_over = [name for name in state.specs if name not in shapes]
    if missing or left_over:
        parts = [f"lacks {', '.join(missing)}"] if missing else []
        parts += [f"has {', '.join(left_over)} besides"] if left_over else []
        raise NpxlError(
            f"{state.path} does not hold the tensors that its configuration asks for: it "
            f"{' and '.join(parts)}."
        )
    for name, (dtype, shape) in state.specs.items():
        if dtype.kind != "f":
            raise NpxlError(f"{state.path}: {name} is of type {dtype}, not floating-point.")
        if shape != shapes[name]:
            raise NpxlError(
                f"{state.path}: {name} has shape {shape}, but its configuration needs "
                f"{shapes[name]}."
            )


def _check_constant(state: StateDict, theirs: Mapping[str, Array], expected: Array) -> None:
    for name, value in theirs.items():
        if not np.allclose(value, expected, rtol=1e-6, atol=0):
            raise NpxlError(
                f"{state.path}: {name} is not 10000^(-2i/d_model), the frequencies of npxl's "
                "positions, to the precision of float32. If it was rounded when the file was saved "
                "in another precision, leave it out of the file."
            )


def assembled(tensor: Tensor, params: Params) -> Array:
    """One of their tensors, made of npxl's."""
    if tensor.constant is not None:
        return tensor.constant.astype(params.dtype)
    whole = np.empty(tensor.shape, params.dtype)
    for ours, theirs in tensor.pairs(params, {tensor.names[0]: whole}):
        theirs[...] = ours
    return whole
