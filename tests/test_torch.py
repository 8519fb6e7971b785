"""npxl against torch: its autograd on the same equations, and Hugging Face's TransfoXL itself.

Skipped without the extra `peers`.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, seeds
from support import each_kind, model_for, tokens

import npxl
from npxl import ModelConfig, NpxlError
from npxl.interop import convert, read_original, read_transfoxl
from npxl.interop.state_dicts import open_state_dict
from npxl.interop.tensors import HUGGING_FACE, tensors
from npxl.testing.strategies import configs

torch = pytest.importorskip("torch", reason="needs torch: pip install '.[peers]'")

import torch_twin  # noqa: E402

lengths = st.lists(st.integers(2, 6), min_size=3, max_size=3)


# The equations, in float64


@pytest.mark.fault("HF 4.35.2: float64 refused")
@each_kind(dropout=0.0, dropatt=0.0)
@given(data=st.data(), lengths=lengths, seed=seeds)
def test_everything_agrees_with_autograd_to_ten_digits(configs, data, lengths, seed):
    config = data.draw(configs)
    model = model_for(config, seed)
    params = {name: torch.tensor(view, requires_grad=True) for name, view in model.params.items()}
    memory = model.init_memory(2)
    theirs = torch.tensor(memory.states)
    for n, length in enumerate(lengths):
        inputs = tokens((2, config.ext_len + length), [seed, n], config.vocab_size)
        targets = tokens((2, length), [seed, n, 1], config.vocab_size)
        log_p, theirs = torch_twin.log_probs(config, params, torch.tensor(inputs), theirs)
        assert_eq(model.log_probs(inputs, memory)[0], log_p.detach().numpy(), rtol=1e-10)
        fwd = model.forward(inputs, targets, memory)
        scored = log_p[:, config.ext_len :]
        nll = -scored.gather(-1, torch.tensor(targets)[..., None])[..., 0]
        assert_eq(fwd.nll, nll.detach().numpy(), rtol=1e-10)
        assert_eq(fwd.memory.states, theirs.numpy(), rtol=1e-10)
        memory = fwd.memory
    dnll = np.random.default_rng(seed).standard_normal(nll.shape)
    (nll * torch.tensor(dnll)).sum().backward()
    for name, gradient in model.backward(fwd, dnll).items():
        expected = params[name].grad
        expected = torch.zeros_like(params[name]) if expected is None else expected
        assert_eq(gradient, expected.numpy(), rtol=1e-10, atol=1e-12)


# TransfoXL, in float32


@pytest.fixture(scope="module")
def transformers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own use of torch
        module = pytest.importorskip("transformers", reason="needs the extra peers")
        from transformers import TransfoXLLMHeadModel  # noqa: F401
    return module


@st.composite
def shared_configs(draw):
    """What both can be, with nothing said that could be left out."""
    # Normalising two or four numbers leaves no digits of their gradients in float32.
    width = st.sampled_from([8, 6, 12])
    config = draw(
        configs(attn_type="dai", ext_len=0, initial_memory="zeros", attn_window=None, d_model=width)
    )
    sees_all = config.mem_len == 0 or draw(st.booleans())
    return replace(
        config,
        attn_window=None if sees_all else config.mem_len,
        d_embed=None if config.d_embed == config.d_model else config.d_embed,
        tie_projs=config.tie_projs if any(config.tie_projs) else (),
    )


def transfoxl(transformers, config, seed):
    """A TransfoXL of this configuration with random weights, biases too."""
    n_clusters = len(config.cutoffs) + 1
    theirs = transformers.TransfoXLConfig(
        vocab_size=config.vocab_size, cutoffs=list(config.cutoffs), d_model=config.d_model,
        d_embed=config.d_embed or config.d_model, n_head=config.n_head, d_head=config.d_head,
        d_inner=config.d_inner, div_val=config.div_val, pre_lnorm=config.pre_lnorm,
        n_layer=config.n_layer, mem_len=config.mem_len, clamp_len=config.clamp_len or -1,
        same_length=config.attn_window is not None, untie_r=config.untie_r,
        tie_projs=list(config.tie_projs) or [False] * n_clusters,
        tie_word_embeddings=config.tie_weight, dropout=config.dropout, dropatt=config.dropatt,
        init_std=config.init_std, proj_init_std=config.proj_init_std,
        layer_norm_epsilon=config.layer_norm_epsilon,
    )  # fmt: skip
    model = transformers.TransfoXLLMHeadModel(theirs).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(float("layer_norm.weight" in name), 0.4, generator=generator)
    return model


def assert_agree(theirs, model, lengths, seed):
    """Log-probabilities, losses, memory and gradients over several segments."""
    config = model.config
    memory, mems = model.init_memory(2), None
    for n, length in enumerate(lengths):
        segment = tokens((2, length), [seed, n], config.vocab_size)
        with torch.no_grad():
            scores = theirs(torch.tensor(segment), mems=mems).prediction_scores
        assert_eq(model.log_probs(segment, memory)[0], scores.numpy(), rtol=1e-5)
        # It scores what follows inside the segment, and remembers its last token as well.
        out = theirs(torch.tensor(segment), mems=mems, labels=torch.tensor(segment))
        fwd = model.forward(segment, np.roll(segment, -1, axis=1), memory)
        order = grouped(segment[:, 1:], config.cutoffs)
        losses = np.empty(2 * (length - 1), np.float32)
        losses[order] = out.losses.detach().numpy().ravel()
        assert_eq(fwd.nll[:, :-1], losses.reshape(2, -1), rtol=1e-5)
        mems, memory = out.mems, fwd.memory
        if config.mem_len:
            states = torch.stack(mems).numpy().transpose(0, 2, 1, 3)
            assert_eq(memory.states, states, rtol=1e-5)
    dnll = np.random.default_rng(seed).standard_normal((2, length)).astype(np.float32)
    dnll[:, -1] = 0
    theirs.zero_grad()
    (out.losses.ravel() * torch.tensor(dnll[:, :-1].ravel()[order])).sum().backward()
    gradients = {
        name: np.zeros(parameter.shape, np.float32)
        if parameter.grad is None
        else parameter.grad.numpy()
        for name, parameter in theirs.named_parameters()
    }
    ours = model.backward(fwd, dnll)
    seen = set()
    for tensor in tensors(config, HUGGING_FACE):
        for gradient, expected in tensor.pairs(ours, gradients) if tensor.parts else ():
            assert_eq(gradient, expected, rtol=1e-5, atol=1e-5)
        seen |= {part.ours for part in tensor.parts}
    assert seen == set(ours)


def grouped(labels, cutoffs):
    """Where the losses that it lists by cluster are in reading order."""
    return np.argsort(np.searchsorted(cutoffs, labels.ravel(), side="right"), kind="stable")


@given(config=shared_configs(), lengths=lengths, seed=seeds, safe=st.booleans())
def test_what_it_saves_is_the_same_model_in_npxl(
    transformers, tmp_path_factory, config, lengths, seed, safe
):
    folder = tmp_path_factory.mktemp("transfoxl")
    theirs = transfoxl(transformers, config, seed)
    theirs.save_pretrained(folder / "theirs", safe_serialization=safe)
    convert(folder / "theirs", folder / "ours.safetensors")
    model = npxl.load(folder / "ours.safetensors")
    assert model.config == config
    assert_agree(theirs, model, lengths, seed)


@given(config=shared_configs(), lengths=lengths, seed=seeds)
def test_what_npxl_saves_is_the_same_model_in_it(
    transformers, tmp_path_factory, config, lengths, seed
):
    folder = tmp_path_factory.mktemp("transfoxl")
    model = model_for(config, seed, np.float32)
    model.save(folder / "ours.safetensors")
    convert(folder / "ours.safetensors", folder / "theirs")
    theirs, problems = transformers.TransfoXLLMHeadModel.from_pretrained(
        folder / "theirs", output_loading_info=True
    )
    assert not any(problems.values()), problems
    assert_agree(theirs, model, lengths, seed)


@pytest.mark.parametrize("tie_projs", [(), (True, True, True), (False, True, False)])
@pytest.mark.parametrize("tie_weight", [True, False])
@pytest.mark.parametrize("div_val", [1, 2, 4])
def test_every_combination_of_ties_and_widths(
    transformers, tmp_path, div_val, tie_weight, tie_projs
):
    config = ModelConfig(
        vocab_size=12, n_layer=2, n_head=2, d_model=8, d_head=3, d_inner=12, mem_len=3,
        attn_window=3, initial_memory="zeros", cutoffs=(4, 9), d_embed=16, div_val=div_val,
        tie_weight=tie_weight, tie_projs=tie_projs, untie_r=tie_weight,
    )  # fmt: skip
    theirs = transfoxl(transformers, config, seed=div_val)
    theirs.save_pretrained(tmp_path / "theirs")
    model = read_transfoxl(tmp_path / "theirs")
    assert model.config == config
    assert_agree(theirs, model, [5, 2, 4], seed=1)
    convert(model, tmp_path / "again")
    again = transformers.TransfoXLLMHeadModel.from_pretrained(tmp_path / "again")
    assert_agree(again, model, [5, 2, 4], seed=2)


@pytest.mark.fault("HF 4.35.2: same_length with mem_len 0")
def test_its_window_without_memory_shows_the_future(transformers, tmp_path):
    """It is not causal then, and npxl refuses it."""
    config = ModelConfig(
        vocab_size=7, n_layer=1, n_head=1, d_model=8, d_head=4, d_inner=8, mem_len=0,
        initial_memory="zeros",
    )  # fmt: skip
    theirs = transfoxl(transformers, config, seed=0)
    model = model_for(config, dtype=np.float32)
    text = tokens((1, 4), vocab_size=7)
    changed = (text + np.array([0, 0, 0, 1])) % 7

    def first(text):
        with torch.no_grad():
            return theirs(torch.tensor(text)).prediction_scores[0, 0].numpy()

    assert_eq(first(text), first(changed))
    theirs.transformer.same_length = theirs.config.same_length = True
    assert np.abs(first(text) - first(changed)).max() > 1e-3
    theirs.save_pretrained(tmp_path)
    with pytest.raises(NpxlError, match="every key is hidden"):
        read_transfoxl(tmp_path)
    memory = model.init_memory(1)  # while here every query sees itself, at least
    model = model.reconfigured(attn_window=1)
    assert_eq(model.log_probs(text, memory)[0][0, 0], model.log_probs(changed, memory)[0][0, 0])


# The original, which today's torch cannot run: TransfoXL was made from it


@given(config=shared_configs(), seed=seeds, newer=st.booleans())
def test_the_originals_state_dict_is_the_same_model_in_npxl(
    transformers, tmp_path_factory, config, seed, newer
):
    """KY's names, its clusters in reverse and its empty memory, which TransfoXL can be given."""
    folder = tmp_path_factory.mktemp("original")
    config = replace(config, untie_r=False, initial_memory="empty")
    theirs = transfoxl(transformers, config, seed)
    state = {
        name.removeprefix("transformer."): value.flip(0) if ".cluster_" in name else value
        for name, value in theirs.state_dict().items()
        if not name.endswith(("dec_attn.r_w_bias", "dec_attn.r_r_bias"))
    }
    torch.save(state, folder / "state.pt", _use_new_zipfile_serialization=newer)
    options = dict(
        mem_len=config.mem_len, same_length=config.attn_window is not None,
        clamp_len=config.clamp_len or 0, pre_lnorm=config.pre_lnorm, cutoffs=config.cutoffs,
    )  # fmt: skip
    model = read_original(folder / "state.pt", options)
    assert model.config.tie_weight == config.tie_weight
    assert model.config.tie_projs == config.tie_projs
    memory = model.init_memory(2)
    mems = [torch.zeros(0, 2, config.d_model)] * config.n_layer if config.mem_len else None
    for n, length in enumerate([3, 1, 4]):
        segment = tokens((2, length), [seed, n], config.vocab_size)
        with torch.no_grad():
            out = theirs(torch.tensor(segment), mems=mems)
        mems = out.mems
        log_p, memory = model.log_probs(segment, memory)
        assert_eq(log_p, out.prediction_scores.numpy(), rtol=1e-5)


# Files that torch saved


def save(path, contents, newer=True):
    torch.save(contents, path, _use_new_zipfile_serialization=newer)


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize(
    ("contents", "sentence"),
    [
        (torch.nn.Linear(2, 3), "holds other objects than tensors.*could run code"),
        ({"weight": torch.zeros(2), "step": 3}, "holds other objects than tensors"),
        (torch.zeros(3), "holds other objects than tensors"),
    ],
)
def test_what_is_no_state_dict_is_not_loaded(tmp_path, contents, sentence, newer):
    save(tmp_path / "model.pt", contents, newer)
    with pytest.raises(NpxlError, match=sentence), open_state_dict(tmp_path / "model.pt"):
        pass


class Spy:
    """Says so when it is loaded."""

    def __reduce__(self):
        return pytest.fail, ("a file ran code",)


@pytest.mark.parametrize("newer", [True, False])
def test_a_file_cannot_run_code(tmp_path, newer):
    save(tmp_path / "model.pt", {"weight": torch.zeros(2), "spy": Spy()}, newer)
    with pytest.raises(NpxlError, match="other objects"), open_state_dict(tmp_path / "model.pt"):
        pass
    with pytest.raises(NpxlError, match="other objects"):
        read_original(tmp_path / "model.pt", {})


@pytest.mark.parametrize("newer", [True, False])
@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_a_file_that_is_cut_short_is_an_error(tmp_path, newer, kept):
    save(tmp_path / "model.pt", {"weight": torch.zeros(1000)}, newer)
    whole = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(NpxlError, match="damaged"), open_state_dict(tmp_path / "model.pt"):
        pass


@pytest.mark.parametrize("newer", [True, False])
def test_tensors_of_any_precision_are_read(tmp_path, newer):
    values = torch.tensor([0.1, -2.0, 3e4])
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
    tensors = {str(dtype): values.to(dtype) for dtype in dtypes}
    tensors["view"] = torch.arange(12.0).reshape(3, 4).T[1:]
    save(tmp_path / "model.pt", tensors, newer)
    with open_state_dict(tmp_path / "model.pt") as state:
        for name, tensor in tensors.items():
            is_half = tensor.dtype in (torch.float16, torch.bfloat16)
            expected = (tensor.float() if is_half else tensor).numpy()
            assert_eq(state[name], expected)
            assert state.specs[name] == (expected.dtype, expected.shape)


@pytest.mark.parametrize(
    ("tensor", "form"),
    [
        (torch.zeros(2).to(torch.float8_e4m3fn), r"torch\.float8_e4m3fn, torch\.strided"),
        (torch.zeros(2).to_sparse(), r"torch\.float32, torch\.sparse_coo"),
        (torch.zeros(2, device="meta"), r"torch\.float32, without values"),
    ],
)
def test_a_tensor_that_numpy_lacks_is_named(tmp_path, tensor, form):
    save(tmp_path / "model.pt", {"weight": torch.zeros(2), "odd": tensor})
    with (
        pytest.raises(NpxlError, match=rf"model\.pt holds .*\(odd is {form}\); save it as a dense"),
        open_state_dict(tmp_path / "model.pt"),
    ):
        pass


def test_a_tensor_that_is_negative_by_a_mark_is_read(tmp_path):
    save(tmp_path / "model.pt", {"weight": torch._neg_view(torch.tensor([1.0, -2.0]))})
    with open_state_dict(tmp_path / "model.pt") as state:
        assert_eq(state["weight"], np.array([-1, 2], np.float32))


def test_tensors_without_names_are_no_state_dict(tmp_path):
    save(tmp_path / "model.pt", {"weight": torch.zeros(2), 7: torch.zeros(2)})
    with (
        pytest.raises(NpxlError, match=r"model\.pt is no state dict.* 7, which is no string"),
        open_state_dict(tmp_path / "model.pt"),
    ):
        pass


def test_an_old_torch_is_not_trusted(tmp_path, monkeypatch):
    """CVE-2025-32434: before torch 2.6 a file could run code with weights_only=True too."""
    save(tmp_path / "model.pt", {"weight": torch.zeros(2)})
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    refused = pytest.raises(NpxlError, match=r"torch 2\.5\.1\+cpu is installed.*2\.6.*upgrade")
    with refused, open_state_dict(tmp_path / "model.pt"):
        pass
