"""npxl against what Hugging Face's TransfoXL gave when fixtures/make_transfoxl.py ran it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from npxl import Memory, ModelConfig, NpxlError, TransformerXL
from npxl.interop.transfoxl import parts

FIXTURE = Path(__file__).parent / "fixtures" / "transfoxl.npz"
CONFIG = ModelConfig(
    vocab_size=11, n_layer=2, n_head=2, d_model=8, d_head=6, d_inner=12, mem_len=5,
    initial_memory="zeros",
)  # fmt: skip


@pytest.fixture(scope="module")
def theirs():
    with np.load(FIXTURE) as file:
        return dict(file)


@pytest.fixture
def model(theirs):
    model = TransformerXL(CONFIG)
    state = {name.removeprefix("state "): value for name, value in theirs.items()}
    for name, part in parts(CONFIG).items():
        model.params[name][...] = part.of(state)
    return model


def test_every_tensor_of_theirs_is_one_of_ours(theirs, model):
    used = {part.name for part in parts(CONFIG).values()}
    repeated = {"crit.out_layers.0.weight", "transformer.pos_emb.inv_freq"}
    repeated |= {f"transformer.layers.{n}.dec_attn.r_{w}_bias" for n in range(2) for w in "wr"}
    assert {n.removeprefix("state ") for n in theirs if n.startswith("state")} == used | repeated
    assert set(parts(CONFIG)) == set(model.params)


@pytest.mark.parametrize(
    "change", [{"untie_r": True}, {"tie_weight": False}, {"attn_type": "shaw", "clamp_len": 3}]
)
def test_a_form_whose_names_are_not_known_is_refused(change):
    with pytest.raises(NpxlError, match=next(iter(change))):
        parts(replace(CONFIG, **change))


@pytest.mark.fault("HF #200")
def test_losses_memories_and_gradients_agree(theirs, model):
    memory = model.init_memory(2)
    for segment, nll, states in zip(
        theirs["segments"], theirs["nll"], theirs["memories"], strict=True
    ):
        # They score what follows inside the segment, and remember its last token as well.
        fwd = model.forward(segment, np.roll(segment, -1, axis=1), memory)
        np.testing.assert_allclose(fwd.nll[:, :-1], nll, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(fwd.memory.states, states, rtol=1e-5, atol=1e-5)
        memory = fwd.memory
    dnll = np.pad(theirs["cotangent"], ((0, 0), (0, 1)))  # nothing of the last token's
    grads = model.backward(fwd, dnll)
    gradients = {name.removeprefix("gradient "): value for name, value in theirs.items()}
    for name, part in parts(CONFIG).items():
        expected = part.of(gradients)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(grads[name] / scale, expected / scale, atol=1e-5, err_msg=name)


def test_a_swapped_bias_would_be_noticed(theirs, model):
    u, v = model.params["attention.u"], model.params["attention.v"]
    u[...], v[...] = v.copy(), u.copy()
    segment = theirs["segments"][0]
    fwd = model.forward(segment, np.roll(segment, -1, axis=1), model.init_memory(2))
    assert np.abs(fwd.nll[:, :-1] - theirs["nll"][0]).max() > 1e-3


def test_the_memory_they_start_with_is_zeros(theirs, model):
    empty = Memory(np.zeros((2, 2, 0, 8), np.float32))
    segment = theirs["segments"][0]
    fwd = model.forward(segment, np.roll(segment, -1, axis=1), empty)
    assert np.abs(fwd.nll[:, :-1] - theirs["nll"][0]).max() > 1e-3
