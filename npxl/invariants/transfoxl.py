"""Hugging Face's TransfoXL as the checks take it: called as its documentation says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError, described
from npxl.interop.tensors import HUGGING_FACE, tensors
from npxl.interop.transfoxl import config_from_transfoxl
from npxl.invariants.adapters import NpxlReference
from npxl.invariants.torch_module import TorchModule
from npxl.models.transformer_xl import TransformerXL
from npxl.params import Params

Array = NDArray[Any]
Tensor = Any
State = tuple[int, Any]
"""Number of streams, and the `mems` [M, B, d] of each layer; None where it gives none."""

IGNORE = -100
"""The label of which its documentation says that it is ignored."""


def transfoxl(
    model: Any,
    *,
    mem_len: int | None = None,
    window: int | None = None,
    initial_memory: Literal["empty", "zeros"] = "empty",
    start_empty: bool = False,
) -> TorchModule:
    """A TransfoXLLMHeadModel of `transformers` 4.35.2, the last release in which it runs.

    Nothing is put right on the way: what the checks see is what it gives to whoever calls it.

    Parameters
    ----------
    model
        The model, in float32; it refuses float64.
    mem_len
        Positions to remember, as by `model.reset_memory_length`; None: what the model does.
    window
        Keys W that a query should see, itself included.  When not given, with `same_length` the
        cached ones and itself, mem_len + 1, and without it all that there are.
    initial_memory
        What should be there before the first segment: "empty", as in the paper, or "zeros".
    start_empty
        Whether to pass it a memory of no positions to begin with, in place of none, for which it
        makes one of zeros.

    Returns
    -------
    TorchModule
        A state is a pair: the number of streams and the model's `mems`.  Its `reference` is npxl's,
        with the same parameters in float64.

    Raises
    ------
    NpxlError
        When `model` is something else, in another precision, or not on the CPU.
    """
    if type(model).__name__ != "TransfoXLLMHeadModel":
        raise NpxlError(
            f"model is {described(model)}, but it must be a TransfoXLLMHeadModel of transformers "
            "4.35.2 (pip install 'npxl[peers]'); for others there is npxl.testing.TorchModule."
        )
    import torch
    from transformers import GenerationConfig

    config, length = model.config, model.transformer.mem_len if mem_len is None else mem_len
    if window is None and config.same_length:
        window = length + 1

    def call(inputs: Tensor, state: State, **options: Any) -> Any:
        before = model.transformer.mem_len
        model.reset_memory_length(length)
        try:
            return model(inputs, mems=state[1], return_dict=True, **options)
        finally:
            model.reset_memory_length(before)

    def start(batch_size: int) -> State:
        positions = 0 if start_empty else length
        if length == 0:
            return batch_size, None
        return batch_size, [torch.zeros(positions, batch_size, config.d_model)] * config.n_layer

    def forward(inputs: Tensor, state: State) -> tuple[Tensor, State]:
        out = call(inputs, state)
        return out.prediction_scores, (len(inputs), out.mems)

    def nll(inputs: Tensor, targets: Tensor, state: State) -> tuple[Tensor, State]:
        # It scores what follows within the segment: the last target is read, but not remembered.
        tokens = targets[:, -1:].clamp(min=0)
        out = call(
            torch.cat([inputs, tokens], dim=1),
            state,
            labels=torch.cat([inputs[:, :1], targets], dim=1),
        )
        return out.losses, forward(inputs, state)[1]

    def memory(state: State) -> Tensor:
        batch_size, mems = state
        if mems is None:
            return torch.zeros(config.n_layer, batch_size, 0, config.d_model)
        return torch.stack(mems).transpose(1, 2)  # [n_layer, B, m, d]

    def select(state: State, rows: Sequence[int]) -> State:
        _, mems = state
        rows = list(rows)
        return len(rows), None if mems is None else [each[:, rows] for each in mems]

    def generate(prompt: Array, n_tokens: int, seed: int) -> tuple[Array, Array]:
        options = GenerationConfig(  # from all symbols, and none ends the text, as 0 does unasked
            do_sample=True,
            top_k=0,
            eos_token_id=-1,
            pad_token_id=-1,
            max_new_tokens=n_tokens,
            return_dict_in_generate=True,
            output_scores=True,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            out = model.generate(torch.tensor(prompt)[None], generation_config=options)
        tokens = out.sequences[0, -n_tokens:]  # [n]
        scores = torch.stack(out.scores)[:, 0]  # [n, V]
        return tokens.numpy(), scores.gather(1, tokens[:, None])[:, 0].numpy()

    def with_mem_len(changed: int) -> TorchModule:
        return transfoxl(
            model, mem_len=changed, initial_memory=initial_memory, start_empty=start_empty
        )

    def reference() -> NpxlReference:
        """The equations, literally, with the window and the start that are declared."""
        ours = replace(
            config_from_transfoxl({**config.to_dict(), "same_length": False, "mem_len": length}),
            attn_window=window,
            initial_memory=initial_memory,
            dropout=0.0,
            dropatt=0.0,  # its masks are torch's
        )
        theirs = {name: value.numpy() for name, value in model.state_dict().items()}
        params = Params(TransformerXL.parameter_shapes(ours), dtype=np.float64)
        for tensor in tensors(ours, HUGGING_FACE):
            for view, values in tensor.pairs(params, theirs) if tensor.parts else ():
                view[...] = values
        return NpxlReference(TransformerXL(ours, params=params))

    return TorchModule(
        model,
        forward,
        start,
        vocab_size=config.vocab_size,
        n_layer=config.n_layer,
        mem_len=length,
        window=window,
        nll=nll,
        memory=memory,
        select=select,
        with_mem_len=with_mem_len,
        generate=None if start_empty or mem_len is not None else generate,
        dropout=bool(config.dropout or config.dropatt),
        initial_memory=initial_memory,
        ignore_index=IGNORE,
        bitwise=config.div_val == 1,
        reference=reference,
    )
