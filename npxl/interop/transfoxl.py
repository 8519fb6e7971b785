"""Hugging Face's TransfoXL: a folder with config.json and the tensors of TransfoXLLMHeadModel.

As transformers 4.35.2 reads and writes it, the last release that can run the model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npxl.config import ModelConfig
from npxl.errors import NpxlError
from npxl.files import atomic_write, new_folder
from npxl.interop.options import SAME, bool_of, fields_of, list_of, read_options, without_aliases
from npxl.interop.state_dicts import open_state_dict
from npxl.interop.tensors import HUGGING_FACE, assembled, read_model, tensors
from npxl.models.transformer_xl import TransformerXL
from npxl.tensor_files import ArraySpec, write_arrays

MODEL_TYPE = "transfo-xl"

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Files that may hold the tensors, the preferred one first."""

_SAME = ("vocab_size", "untie_r", "init_std", "layer_norm_epsilon")
"""Options, besides those of the original code, that are fields of ModelConfig and mean the same."""

_ALIASES = {
    "n_token": "vocab_size", "hidden_size": "d_model", "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}  # fmt: skip

_DEFAULTS: dict[str, Any] = {
    "vocab_size": 267735, "cutoffs": [20000, 40000, 200000], "d_model": 1024, "d_embed": 1024,
    "n_head": 16, "d_head": 64, "d_inner": 4096, "div_val": 4, "pre_lnorm": False, "n_layer": 18,
    "mem_len": 1600, "clamp_len": 1000, "same_length": True, "proj_share_all_but_first": True,
    "attn_type": 0, "sample_softmax": -1, "dropout": 0.1, "dropatt": 0.0, "untie_r": True,
    "proj_init_std": 0.01, "init_std": 0.02, "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
"""What TransfoXLConfig takes for an option that config.json lacks."""


def read_transfoxl(folder: str | Path) -> TransformerXL:
    """The model in a folder that `save_pretrained` wrote.

    Raises
    ------
    NpxlError
        When a file is missing or damaged, when config.json says what npxl cannot express or
        TransfoXL does wrong, and for a tensor that is missing, left over, of another shape, or
        different from another that it is tied to.
    """
    folder = Path(folder)
    path = folder / "config.json"
    values = read_options(path)
    try:
        config = config_from_transfoxl(values)
    except NpxlError as error:
        raise NpxlError(f"{path} describes no model of npxl's. {error}") from error
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if weights is None:
        raise NpxlError(f"{folder} has neither {' nor '.join(WEIGHTS)}.")
    with open_state_dict(weights) as state:
        return read_model(state, config, HUGGING_FACE)


def write_transfoxl(model: TransformerXL, folder: str | Path) -> None:
    """Make a folder that TransfoXLLMHeadModel.from_pretrained loads, with the same predictions.

    The tensors are made one after another.

    Raises
    ------
    NpxlError
        When TransfoXL has nothing that predicts the same, and when there is something at `folder`
        or it cannot be made.
    """
    values = config_to_transfoxl(model.config)
    table = {tensor.names[0]: tensor for tensor in tensors(model.config, HUGGING_FACE)}
    specs = {name: ArraySpec(model.dtype, tensor.shape) for name, tensor in table.items()}
    with new_folder(folder) as draft:
        with atomic_write(draft / "config.json") as file:
            values = {**values, "torch_dtype": str(model.dtype)}
            file.write((json.dumps(values, indent=2, sort_keys=True) + "\n").encode())
        write_arrays(
            draft / WEIGHTS[0],
            specs,
            lambda name: assembled(table[name], model.params),
            {"format": "pt"},
        )


def config_from_transfoxl(values: Mapping[str, Any]) -> ModelConfig:
    """The configuration that the options in a config.json mean.

    Raises NpxlError for what npxl cannot express, and for what is no configuration.
    """
    if values.get("model_type") != MODEL_TYPE:
        raise NpxlError(f"Its model_type is {values.get('model_type')!r}, not {MODEL_TYPE!r}.")
    values = {**_DEFAULTS, **without_aliases(values, _ALIASES)}
    if values["attn_type"] != 0:
        raise NpxlError(
            f"attn_type is {values['attn_type']!r}, but TransfoXL has code for 0 alone, the "
            "paper's attention."
        )
    if values.get("ext_len", 0) != 0:
        raise NpxlError(
            f"ext_len is {values['ext_len']!r}, but TransfoXL ignores it and reads no token "
            "twice: set it to 0."
        )
    tie_weight = values["tie_word_embeddings"]
    if values.get("tie_weight", tie_weight) != tie_weight:
        raise NpxlError(
            f"tie_weight is {values['tie_weight']!r}, but TransfoXL goes by tie_word_embeddings, "
            f"which is {tie_weight!r}: remove tie_weight if that is right."
        )
    shares = bool_of(values, "proj_share_all_but_first")
    first_is_own = [False] + [shares] * len(list_of(values, "cutoffs"))
    return ModelConfig(
        **fields_of({"tie_projs": first_is_own, **values}),
        **{name: values[name] for name in _SAME},
        tie_weight=tie_weight,
        initial_memory="zeros",
    )


def config_to_transfoxl(config: ModelConfig) -> dict[str, Any]:
    """The options in a config.json that mean this configuration.

    Raises NpxlError when none do.
    """
    _require_the_same_predictions(config)
    return {
        "model_type": MODEL_TYPE,
        "architectures": ["TransfoXLLMHeadModel"],
        **{name: getattr(config, name) for name in (*SAME, *_SAME)},
        "same_length": config.attn_window is not None,
        "clamp_len": -1 if config.clamp_len is None else config.clamp_len,
        "d_embed": config.embedding_width,
        "proj_init_std": config.proj_init_std,
        "cutoffs": list(config.cutoffs),
        "adaptive": bool(config.cutoffs),
        "tie_projs": list(config.tie_projs) or [False] * len(config.clusters),
        "tie_word_embeddings": config.tie_weight,
        "attn_type": 0,
        "sample_softmax": -1,
        # It generates until this token; which one, if any, the vocabulary knows.
        "eos_token_id": None,
    }


def _require_the_same_predictions(config: ModelConfig) -> None:
    """NpxlError, saying what could be changed, when TransfoXL would predict something else."""
    window, mem_len = config.attn_window, config.mem_len
    if config.attn_type != "dai":
        raise NpxlError(
            f"attn_type is {config.attn_type}, but TransfoXL has no code for it: only for dai, the "
            "paper's attention."
        )
    if config.ext_len:
        raise NpxlError(
            f"ext_len is {config.ext_len}, but TransfoXL reads no token twice: convert the model "
            "with --ext-len 0."
        )
    if config.initial_memory != "zeros" and mem_len > 0:
        raise NpxlError(
            "initial_memory is empty, but TransfoXL begins with mem_len zero vectors, to which it "
            "attends: convert the model with --initial-memory zeros, which changes what is "
            "predicted until they are forgotten."
        )
    if window is not None and (window != mem_len or mem_len == 0):
        advice = (
            f"convert the model with --mem-len {window}, which changes no prediction"
            if window <= mem_len + 1
            else "convert the model with --attn-window none, which lets it see all that is cached"
        )
        raise NpxlError(
            f"attn_window is {window} and mem_len {mem_len}, but in TransfoXL a query sees as many "
            f"keys, itself included, as there are cached, or all: {advice}."
        )
