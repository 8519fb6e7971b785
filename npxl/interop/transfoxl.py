"""Names of Hugging Face's TransfoXLLMHeadModel for the tensors of a model without cut-offs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npxl.config import ModelConfig
from npxl.errors import NpxlError

Array = NDArray[Any]


class Part(NamedTuple):
    """A tensor of theirs, or one of three equal parts of its rows."""

    name: str
    third: int | None = None

    def of(self, tensors: Mapping[str, Array]) -> Array:
        """This part of their tensors."""
        tensor = tensors[self.name]
        return tensor if self.third is None else np.split(tensor, 3)[self.third]


def parts(config: ModelConfig) -> dict[str, Part]:
    """Where each of npxl's tensors is among theirs, for tied weights and shared biases u and v.

    Raises
    ------
    NpxlError
        When the configuration unties either, or encodes positions in another way than theirs.
    """
    if config.attn_type != "dai":
        raise NpxlError(f"attn_type is {config.attn_type}, but TransfoXL knows dai alone.")
    if config.untie_r or not config.tie_weight:
        raise NpxlError(
            f"untie_r is {config.untie_r} and tie_weight {config.tie_weight}, but the names of "
            "TransfoXL are known for untie_r=False and tie_weight=True."
        )
    found = {
        "embedding.weight": Part("transformer.word_emb.emb_layers.0.weight"),
        "attention.u": Part("transformer.r_w_bias"),
        "attention.v": Part("transformer.r_r_bias"),
        "softmax.bias": Part("crit.out_layers.0.bias"),
    }
    for n in range(config.n_layer):
        ours, theirs = f"layers.{n}", f"transformer.layers.{n}"
        attention, feed_forward = f"{theirs}.dec_attn", f"{theirs}.pos_ff"
        found |= {
            f"{ours}.attention.{w}": Part(f"{attention}.qkv_net.weight", third)
            for third, w in enumerate(("w_q", "w_k", "w_v"))
        }
        found |= {
            f"{ours}.attention.w_r": Part(f"{attention}.r_net.weight"),
            f"{ours}.attention.w_o": Part(f"{attention}.o_net.weight"),
            f"{ours}.attention_norm.gain": Part(f"{attention}.layer_norm.weight"),
            f"{ours}.attention_norm.bias": Part(f"{attention}.layer_norm.bias"),
            f"{ours}.feed_forward.w_1": Part(f"{feed_forward}.CoreNet.0.weight"),
            f"{ours}.feed_forward.b_1": Part(f"{feed_forward}.CoreNet.0.bias"),
            f"{ours}.feed_forward.w_2": Part(f"{feed_forward}.CoreNet.3.weight"),
            f"{ours}.feed_forward.b_2": Part(f"{feed_forward}.CoreNet.3.bias"),
            f"{ours}.feed_forward_norm.gain": Part(f"{feed_forward}.layer_norm.weight"),
            f"{ours}.feed_forward_norm.bias": Part(f"{feed_forward}.layer_norm.bias"),
        }
    return found
