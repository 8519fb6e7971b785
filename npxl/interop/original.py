"""The paper's PyTorch code (github.com/kimiyoung/transformer-xl): a state dict and its options.

What that code saves is a pickled module, which can run anything when it is loaded; docs/weights.md
says how to make of it, where it was trained, the two files that are read here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.config import ModelConfig, checked_int
from npxl.errors import NpxlError
from npxl.interop.options import bool_of, fields_of, list_of, read_options
from npxl.interop.state_dicts import StateDict, open_state_dict
from npxl.interop.tensors import ORIGINAL, read_model
from npxl.models.transformer_xl import TransformerXL
from npxl.tensor_files import ArraySpec

Array = NDArray[Any]

REQUIRED = ("mem_len", "same_length", "clamp_len", "pre_lnorm")
"""Options that predictions depend on and that no tensor tells."""

_DEFAULTS: dict[str, Any] = {
    "sample_softmax": -1, "dropout": 0.0, "dropatt": 0.0, "init_std": 0.02, "proj_init_std": 0.01,
}  # fmt: skip
"""What is taken for options that predictions do not depend on."""

_ATTN_TYPES = ("dai", "shaw", "vaswani", "al-rfou")

_ADAPTIVE: dict[Any, dict[str, Any]] = {
    "wt103": {"cutoffs": [20000, 40000, 200000], "tie_projs": [False, True, True, True]},
    "lm1b": {"cutoffs": [60000, 100000, 640000], "tie_projs": [False, False, False, False]},
}
"""What its train.py makes of --adaptive, by --dataset."""


_TABLES = ("r_emb", "r_bias")
"""Tensors [n_layer, rows, ...] with a row for each distance, of which the last is 0."""


def read_original(path: str | Path, options: str | Path | Mapping[str, Any]) -> TransformerXL:
    """The model of a state dict.

    Parameters
    ----------
    path
        A file of safetensors, or what torch.save wrote.
    options
        Values by the names of the arguments of its MemTransformerLM or its train.py; or a file of
        them, JSON or TOML. `REQUIRED` must be among them. What the tensors tell can be left out,
        and must agree with them; names that say nothing of a model are ignored.

    Raises
    ------
    NpxlError
        When a file is missing or damaged, when the options lack one that is required, contradict
        the tensors, or say what npxl cannot express or the original does wrong, and for a tensor
        that is missing, left over, of another shape, or different from another that it is tied to.
    """
    given = options if isinstance(options, Mapping) else read_options(options)
    with open_state_dict(path) as state:
        try:
            config = _config(given, state)
        except NpxlError as error:
            where = "options" if isinstance(options, Mapping) else options
            raise NpxlError(f"With its {where}, {path} is no model of npxl's. {error}") from error
        return read_model(_Nearest(state, config.n_learned), config, ORIGINAL)


class _Nearest:
    """A state dict whose learned tables have the rows that are read: the last ones, if clamped."""

    def __init__(self, state: StateDict, n_rows: int) -> None:
        self.path = state.path
        self._state, self._n_rows = state, n_rows
        self.specs = {name: self._spec(name, spec) for name, spec in state.specs.items()}

    def _spec(self, name: str, spec: ArraySpec) -> ArraySpec:
        if name not in _TABLES or len(spec.shape) < 2:
            return spec
        n_layer, n_rows, *row = spec.shape
        return ArraySpec(spec.dtype, (n_layer, min(n_rows, self._n_rows), *row))

    def __getitem__(self, name: str, /) -> Array:
        array = self._state[name]
        return array[:, -self._n_rows :] if name in _TABLES else array


def _config(given: Mapping[str, Any], state: StateDict) -> ModelConfig:
    missing = [name for name in REQUIRED if name not in given]
    if missing:
        raise NpxlError(
            f"They lack {', '.join(missing)}, which no tensor tells: give the values that the "
            "model was trained or is to be read with."
        )
    if given.get("ext_len", 0) != 0:
        raise NpxlError(
            f"ext_len is {given['ext_len']!r}, but the original then forgets other tokens than "
            "those that it reads again, because it calls _update_mems with two arguments in the "
            "wrong order. Set it to 0; --ext-len gives npxl's own."
        )
    values = _by_names_of_the_class(given)
    for name, value in _told_by_shapes(state, values).items():
        if values.setdefault(name, value) != value:
            raise NpxlError(f"{name} is {values[name]!r}, but the tensors have {value!r}.")
    values.setdefault("div_val", _div_val(state))
    values = {**_DEFAULTS, **_ties(state, values), **values}
    fields = fields_of(values) | {"attn_type": _ATTN_TYPES[values["attn_type"]]}
    _check_places(values)
    if "r_emb" in state.specs:
        # Its rows are of the distances …, 1, 0; attn_type 1 reads the last clamp_len of them.
        n_rows = _shape(state, "r_emb", 4)[1]
        if fields["clamp_len"] is not None and values["attn_type"] == 1:
            n_rows = min(n_rows, fields["clamp_len"])
        fields["clamp_len"] = n_rows - 1
    return ModelConfig(
        **fields,
        vocab_size=values["n_token"],
        tie_weight=values["tie_weight"],
        init_std=values["init_std"],
        initial_memory="empty",
        layer_norm_epsilon=1e-5,
    )


def _check_places(values: Mapping[str, Any]) -> None:
    """NpxlError for what the original does wrong where it adds places to what layers read."""
    if values["attn_type"] not in (2, 3):
        return
    width = values["n_head"] * values["d_head"]
    if values["attn_type"] == 3 and width != values["d_model"]:
        raise NpxlError(
            f"The rows of r_emb are of n_head × d_head = {width} numbers, but they are to be added "
            f"to states of d_model = {values['d_model']}."
        )
    if values["mem_len"] != 0:
        raise NpxlError(
            f"mem_len is {values['mem_len']!r}, but with attn_type 2 and 3 the original adds "
            "places to its memory again after every segment, which npxl does not. Set it to 0; "
            "--mem-len gives npxl's own."
        )
    if values["pre_lnorm"]:
        raise NpxlError(
            "pre_lnorm is true, but with attn_type 2 and 3 the original then makes keys and "
            "values of what is normalised and queries of what is not, which npxl does not."
        )


def _by_names_of_the_class(given: Mapping[str, Any]) -> dict[str, Any]:
    """What train.py makes of its arguments before it calls MemTransformerLM with them."""
    values = {n: list(value) if isinstance(value, tuple) else value for n, value in given.items()}
    if values.get("d_embed") in (None, -1):  # that of d_model, which tensors tell
        values.pop("d_embed", None)
    for name, means_tied in (("tied", True), ("not_tied", False)):
        if name in values:
            tie_weight = bool_of(values, name) is means_tied
            if values.setdefault("tie_weight", tie_weight) != tie_weight:
                raise NpxlError(
                    f"{name} is {values[name]!r}, but another option says the opposite: leave the "
                    "wrong one out."
                )
    if values.get("adaptive") and "cutoffs" not in values:
        dataset = values.get("dataset")
        if dataset not in list(_ADAPTIVE):  # which is asked of any value, not of keys alone
            raise NpxlError(
                f"adaptive is true and dataset {dataset!r}, but the original has "
                f"cut-offs for {' and '.join(_ADAPTIVE)} alone: give cutoffs."
            )
        values |= _ADAPTIVE[dataset]
    return values


def _told_by_shapes(state: StateDict, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of which names and shapes leave no choice."""
    d_inner, d_model = _shape(state, "layers.0.pos_ff.CoreNet.0.weight", 2)
    layers = {match[1] for name in state.specs if (match := re.match(r"layers\.(\d+)\.", name))}
    tables = _tables(state)
    ends = [int(end) for end in np.cumsum([n_symbols for n_symbols, _ in tables])]
    told: dict[str, Any] = {
        "n_token": ends[-1], "n_layer": len(layers), "d_model": d_model, "d_inner": d_inner,
        "d_embed": tables[0][1], **_attention(state, values),
    }  # fmt: skip
    if len(tables) > 1 or "crit.cluster_weight" not in state.specs:
        told["cutoffs"] = ends[:-1]
    elif "cutoffs" not in values:
        raise NpxlError("They lack cutoffs, which no tensor tells where div_val is 1.")
    return told


def _attention(state: StateDict, values: Mapping[str, Any]) -> dict[str, int]:
    """attn_type, n_head and d_head."""
    if "r_r_bias" in state.specs:
        attn_type = 0
        n_head, d_head = _shape(state, "r_r_bias", 2)
    elif "r_emb" in state.specs:
        attn_type = 1 if "r_bias" in state.specs else 3
        _, _, n_head, d_head = _shape(state, "r_emb", 4)
    else:
        attn_type = 2
        n_head = checked_int(
            "n_head, which no tensor tells with attn_type 2,", values.get("n_head"), 1
        )
        d_head = _shape(state, "layers.0.dec_attn.q_net.weight", 2)[0] // n_head
    return {"attn_type": attn_type, "n_head": n_head, "d_head": d_head}


def _div_val(state: StateDict) -> int:
    """One that gives these widths; several may, and mean the same."""
    widths = [width for _, width in _tables(state)]
    if len(widths) == 1:
        d_model = _shape(state, "layers.0.pos_ff.CoreNet.0.weight", 2)[1]
        # With 1, there is a projection only if it changes the width.
        return 2 if widths[0] == d_model and "word_emb.emb_projs.0" in state.specs else 1
    for div_val in range(1, widths[0] + 1):
        if widths == [widths[0] // div_val**i for i in range(len(widths))]:
            return div_val
    raise NpxlError(f"The embeddings have widths {widths}, which no div_val gives.")


def _ties(state: StateDict, values: Mapping[str, Any]) -> dict[str, Any]:
    """What is equal is tied, unless the options say otherwise.

    Predictions are the same either way.
    """
    tables = range(len(_tables(state)))
    tie_weight = all(
        _are_one(state, f"word_emb.emb_layers.{i}.weight", f"crit.out_layers.{i}.weight")
        for i in tables
    )
    tie_projs = [
        _are_one(state, f"word_emb.emb_projs.{min(i, tables[-1])}", f"crit.out_projs.{i}")
        for i in range(len(list_of(values, "cutoffs")) + 1)
    ]
    return {"tie_weight": tie_weight, "tie_projs": tie_projs}


def _are_one(state: StateDict, embedding: str, output: str) -> bool:
    """Whether both are there and equal, or one was left out, as safetensors does with copies."""
    if embedding not in state.specs or output not in state.specs:
        return embedding in state.specs or output in state.specs
    return np.array_equal(state[embedding], state[output])


def _tables(state: StateDict) -> list[tuple[int, ...]]:
    """The shapes of the embedding's tables."""
    shapes = [_shape(state, "word_emb.emb_layers.0.weight", 2)]
    while (name := f"word_emb.emb_layers.{len(shapes)}.weight") in state.specs:
        shapes.append(_shape(state, name, 2))
    return shapes


def _shape(state: StateDict, name: str, n_axes: int) -> tuple[int, ...]:
    if name not in state.specs or len(state.specs[name].shape) != n_axes:
        raise NpxlError(
            f"The tensors lack {name} with {n_axes} axes: they are not of a MemTransformerLM."
        )
    return state.specs[name].shape
