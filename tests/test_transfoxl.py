"""npxl against what Hugging Face's TransfoXL saved and gave when fixtures/make_transfoxl.py ran it.

tests/test_torch.py draws many configurations, where torch is installed.
"""

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from numerical import assert_eq

from npxl import Memory, ModelConfig
from npxl.interop import read_transfoxl, write_transfoxl
from npxl.interop.tensors import HUGGING_FACE, tensors

FIXTURES = Path(__file__).parent / "fixtures" / "transfoxl"
SHARED = dict(
    vocab_size=11, n_layer=2, n_head=2, d_model=8, d_head=6, d_inner=12, mem_len=5,
    initial_memory="zeros", dropout=0.1,
)  # fmt: skip
CONFIGS = {
    "plain": ModelConfig(**SHARED),
    "adaptive": ModelConfig(
        **SHARED, cutoffs=(4, 8), div_val=2, tie_projs=(False, True, True), untie_r=True,
        attn_window=5, clamp_len=3, pre_lnorm=True,
    ),
}  # fmt: skip


@pytest.fixture(params=CONFIGS)
def name(request):
    return request.param


@pytest.fixture
def model(name):
    return read_transfoxl(FIXTURES / name)


@pytest.fixture
def expected(name):
    with np.load(FIXTURES / name / "expected.npz") as file:
        return dict(file)


def reading_order(by_cluster, labels, cutoffs):
    """HF lists losses by cluster, and within one in reading order; labels are [B, T]."""
    order = np.argsort(np.searchsorted(cutoffs, labels.ravel(), side="right"), kind="stable")
    found = np.empty_like(by_cluster)
    found[order] = by_cluster
    return found.reshape(labels.shape)


def forwards(model, segments, memory=None):
    """Forward passes over segments whose last token is remembered and its successor not scored."""
    memory = model.init_memory(2) if memory is None else memory
    for segment in segments:
        fwd = model.forward(segment, np.roll(segment, -1, axis=1), memory)
        memory = fwd.memory
        yield fwd


def test_its_configuration_is_read(name, model):
    assert model.config == CONFIGS[name]
    assert model.dtype == np.float32


@pytest.mark.fault("HF #200")
def test_log_probs_losses_memories_and_gradients_agree(model, expected):
    cutoffs, segments = model.config.cutoffs, expected["segments"]
    memory = model.init_memory(2)
    for n, fwd in enumerate(forwards(model, segments)):
        assert_eq(model.log_probs(segments[n], memory)[0], expected["log_probs"][n], rtol=1e-5)
        nll = reading_order(expected["losses"][n], segments[n][:, 1:], cutoffs)
        assert_eq(fwd.nll[:, :-1], nll, rtol=1e-5)
        assert_eq(fwd.memory.states, expected["memories"][n], rtol=1e-5)
        memory = fwd.memory
    dnll = reading_order(expected["cotangent"], segments[-1][:, 1:], cutoffs)
    grads = model.backward(fwd, np.pad(dnll, ((0, 0), (0, 1))))  # nothing of the last token's
    theirs = {n.removeprefix("gradient "): each for n, each in expected.items() if "gradient" in n}
    seen = set()
    for tensor in tensors(model.config, HUGGING_FACE):
        for ours, gradient in tensor.pairs(grads, theirs) if tensor.parts else ():
            assert_eq(ours, gradient, rtol=1e-5)
        seen |= {part.ours for part in tensor.parts}
    assert seen == set(grads)


@pytest.mark.fault("HF 4.35.2: order of adaptive losses")
def test_losses_by_cluster_are_in_the_wrong_places(model, expected, name):
    (fwd,) = forwards(model, expected["segments"][:1])
    as_listed = expected["losses"][0].reshape(2, 3)
    assert_eq(np.sort(fwd.nll[:, :-1].ravel()), np.sort(as_listed.ravel()), rtol=1e-5)
    assert (np.abs(fwd.nll[:, :-1] - as_listed).max() > 0.1) == (name == "adaptive")


def swap_biases(model):
    for u in [name for name in model.params if name.endswith(".u")]:
        pair = model.params[u], model.params[u[:-1] + "v"]
        pair[0][...], pair[1][...] = pair[1].copy(), pair[0].copy()


def swap_keys_and_queries(model):
    for query in [name for name in model.params if name.endswith("w_q")]:
        pair = model.params[query], model.params[query[:-1] + "k"]
        pair[0][...], pair[1][...] = pair[1].copy(), pair[0].copy()


@pytest.mark.parametrize("fault", [swap_biases, swap_keys_and_queries])
def test_what_is_mixed_up_would_be_noticed(model, expected, fault):
    fault(model)
    (fwd,) = forwards(model, expected["segments"][:1])
    nll = reading_order(expected["losses"][0], expected["segments"][0][:, 1:], model.config.cutoffs)
    assert np.abs(fwd.nll[:, :-1] - nll).max() > 1e-3


@pytest.mark.fault("HF 4.35.2: memory that begins as zeros")
def test_the_memory_it_starts_with_is_zeros(model, expected):
    empty = Memory(np.zeros((2, 2, 0, 8), np.float32))
    (fwd,) = forwards(model, expected["segments"][:1], empty)
    nll = reading_order(expected["losses"][0], expected["segments"][0][:, 1:], model.config.cutoffs)
    assert np.abs(fwd.nll[:, :-1] - nll).max() > 1e-3


@pytest.mark.fault("HF #14832")
@pytest.mark.parametrize("name", ["adaptive"], indirect=True)
def test_its_window_counts_the_query_and_is_mem_len(model, expected):
    for window, agrees in ((5, True), (6, False), (4, False)):
        (*_, fwd) = forwards(model.reconfigured(attn_window=window), expected["segments"])
        difference = np.abs(fwd.memory.states - expected["memories"][-1]).max()
        assert (difference < 1e-5) == agrees


def test_written_again_it_is_the_same(tmp_path, name, model):
    write_transfoxl(model, tmp_path / "again")
    again = read_transfoxl(tmp_path / "again")
    assert again.config == model.config
    assert_eq(again.params.flat, model.params.flat)
    theirs = safetensors.numpy.load_file(FIXTURES / name / "model.safetensors")
    written = safetensors.numpy.load_file(tmp_path / "again" / "model.safetensors")
    for tensor in tensors(model.config, HUGGING_FACE):
        (one,) = (written.pop(each) for each in tensor.names if each in written)
        assert_eq(one, next(theirs[each] for each in tensor.names if each in theirs), rtol=1e-6)
    assert not written
