"""npxl convert: what is read, what is written, and what is refused; without torch."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, seeds
from small_runs import create, write_text
from support import model_for, tokens

import npxl
from npxl import ModelConfig, NpxlError
from npxl.cli import main
from npxl.interop import convert, read_original, read_transfoxl, write_transfoxl
from npxl.interop.tensors import HUGGING_FACE, ORIGINAL, assembled, tensors
from npxl.interop.transfoxl import config_from_transfoxl, config_to_transfoxl
from npxl.testing.strategies import ATTN_TYPES, PLACES, configs

HUGGING = Path(__file__).parent / "fixtures" / "transfoxl"
SMALL = ModelConfig(
    vocab_size=11, n_layer=2, n_head=2, d_model=8, d_head=6, d_inner=12, mem_len=5,
    initial_memory="zeros",
)  # fmt: skip
ADAPTIVE = replace(SMALL, cutoffs=(4, 8), div_val=2, tie_projs=(False, True, False))


def state_of(model, dialect):
    """A state dict of the model, under first names alone."""
    return {
        tensor.names[0]: assembled(tensor, model.params)
        for tensor in tensors(model.config, dialect)
    }


def options_of(config):
    """All that the original's MemTransformerLM was called with."""
    return {
        "n_token": config.vocab_size, "n_layer": config.n_layer, "n_head": config.n_head,
        "d_model": config.d_model, "d_head": config.d_head, "d_inner": config.d_inner,
        "dropout": config.dropout, "dropatt": config.dropatt, "tie_weight": config.tie_weight,
        "d_embed": config.embedding_width, "div_val": config.div_val,
        "tie_projs": list(config.tie_projs), "pre_lnorm": config.pre_lnorm, "tgt_len": 3,
        "ext_len": 0, "mem_len": config.mem_len, "cutoffs": list(config.cutoffs),
        "same_length": config.attn_window is not None,
        "attn_type": ATTN_TYPES.index(config.attn_type),
        "clamp_len": config.n_learned if config.attn_type == "shaw" else config.clamp_len or -1,
        "sample_softmax": -1, "init_std": config.init_std, "proj_init_std": config.proj_init_std,
    }  # fmt: skip


@st.composite
def shared_configs(draw, **options):
    """What npxl and the other two can be, with nothing said that could be left out."""
    config = draw(configs(ext_len=0, attn_window=None, **{"attn_type": "dai", **options}))
    sees_all = config.mem_len == 0 or draw(st.booleans())
    return replace(
        config,
        attn_window=None if sees_all else config.mem_len,
        d_embed=None if config.d_embed == config.d_model else config.d_embed,
        tie_projs=config.tie_projs if any(config.tie_projs) else (),
    )


def of_the_original(config):
    """The nearest that the original can be."""
    config = replace(config, untie_r=False, initial_memory="empty")
    if config.attn_type in PLACES:
        config = replace(config, mem_len=0, attn_window=None, pre_lnorm=False)
    if config.attn_type == "al-rfou":
        config = replace(config, n_head=2, d_head=config.d_model // 2)
    return config


original_configs = shared_configs(attn_type=st.sampled_from(ATTN_TYPES)).map(of_the_original)


# Both ways


@given(config=configs(), dialect=st.sampled_from([HUGGING_FACE, ORIGINAL]))
def test_every_number_is_in_their_tensors_once(config, dialect):
    in_both = replace(config, attn_type="dai")
    model = model_for(in_both if dialect is HUGGING_FACE else of_the_original(config))
    model.params.flat[:] = np.arange(model.params.flat.size)
    state = {n: value for n, value in state_of(model, dialect).items() if "inv_freq" not in n}
    everything = np.concatenate([value.ravel() for value in state.values()])
    assert_eq(np.sort(everything), model.params.flat)
    for tensor in tensors(model.config, dialect):
        assert tensor.constant is not None or state[tensor.names[0]].shape == tensor.shape


@given(config=shared_configs(initial_memory="zeros"), seed=seeds,
       dtype=st.sampled_from([np.float32, np.float64]))  # fmt: skip
def test_transfoxl_comes_back_bit_for_bit(tmp_path_factory, config, seed, dtype):
    folder = tmp_path_factory.mktemp("transfoxl")
    model = model_for(config, seed, dtype)
    write_transfoxl(model, folder / "theirs")
    again = read_transfoxl(folder / "theirs")
    assert again.config == config
    assert again.params.shapes == model.params.shapes
    assert_eq(again.params.flat, model.params.flat)


@given(config=original_configs, seed=seeds)
def test_the_original_is_read_bit_for_bit(tmp_path_factory, config, seed):
    path = tmp_path_factory.mktemp("original") / "state.safetensors"
    model = model_for(config, seed, np.float32)
    safetensors.numpy.save_file(state_of(model, ORIGINAL), path)
    again = read_original(path, options_of(config))
    assert again.config == config
    assert_eq(again.params.flat, model.params.flat)


@given(config=original_configs, seed=seeds)
def test_the_original_needs_no_options_that_its_tensors_tell(tmp_path_factory, config, seed):
    path = tmp_path_factory.mktemp("original") / "state.safetensors"
    model = model_for(config, seed, np.float32)
    safetensors.numpy.save_file(state_of(model, ORIGINAL), path)
    options = options_of(config)
    needed = {name: options[name] for name in ("mem_len", "same_length", "clamp_len", "pre_lnorm")}
    if config.div_val == 1:
        needed["cutoffs"] = options["cutoffs"]
    if config.attn_type == "vaswani":
        needed["n_head"] = options["n_head"]
    again = read_original(path, needed)
    text = tokens((2, 4), seed, config.vocab_size)
    expected, memory = model.log_probs(text, model.init_memory(2))
    found, again_memory = again.log_probs(text, again.init_memory(2))
    assert_eq(found, expected)
    assert_eq(again_memory.states, memory.states)
    assert again.config.tie_weight == config.tie_weight
    assert again.config.tie_projs == config.tie_projs
    assert_eq(np.sort(again.params.flat), np.sort(model.params.flat))


# The original's conventions


@pytest.fixture
def original(tmp_path):
    """Writes a state dict of the original and reads it with options, some of them changed."""

    def read(config=None, fault=None, without=(), **changes):
        config = config or replace(ADAPTIVE, initial_memory="empty")
        state = state_of(model_for(config, dtype=np.float32), ORIGINAL)
        if fault is not None:
            fault(state)
        safetensors.numpy.save_file(state, tmp_path / "state.safetensors")
        options = {n: v for n, v in options_of(config).items() if n not in without} | changes
        (tmp_path / "options.json").write_text(json.dumps(options))
        return read_original(tmp_path / "state.safetensors", tmp_path / "options.json")

    return read


def test_the_originals_clusters_are_in_reverse():
    """KY's head_logprob[:, -i] is the i-th tail: its rows are HF's and npxl's from the end."""
    model = model_for(ADAPTIVE, dtype=np.float32)
    state, n_tails = state_of(model, ORIGINAL), len(ADAPTIVE.cutoffs)
    for tail in range(1, n_tails + 1):
        for name in ("cluster_weight", "cluster_bias"):
            assert_eq(state[f"crit.{name}"][-tail], model.params[f"softmax.{name}"][tail - 1])
            theirs = state_of(model, HUGGING_FACE)[f"crit.{name}"]
            assert_eq(theirs[tail - 1], model.params[f"softmax.{name}"][tail - 1])


def test_the_original_begins_with_empty_memory_and_its_window_is_mem_len(original):
    config = original(same_length=True, mem_len=7).config
    assert (config.initial_memory, config.attn_window, config.mem_len) == ("empty", 7, 7)
    assert original(same_length=False, mem_len=7).config.attn_window is None


def test_what_train_py_calls_its_arguments_is_understood(original, tmp_path):
    plain = replace(SMALL, initial_memory="empty", tie_weight=False)
    named = dict(adaptive=False, dataset="enwik8", lr=0.1, d_embed=-1, not_tied=True, tied=False)
    assert original(plain, without=("tie_weight", "cutoffs"), **named).config == plain
    with pytest.raises(NpxlError, match=r"cutoffs is \[20000, 40000, 200000\]"):
        original(without=("cutoffs", "tie_projs"), adaptive=True, dataset="wt103")
    for other in ("enwik8", ["wt103"], None):
        with pytest.raises(NpxlError, match="cut-offs for wt103 and lm1b alone: give cutoffs"):
            original(without=("cutoffs", "tie_projs"), adaptive=True, dataset=other)
    (tmp_path / "options.toml").write_text(
        'mem_len = 3\nsame_length = true\nclamp_len = -1\npre_lnorm = false\ndataset = "wt2"\n'
    )
    read = read_original(tmp_path / "state.safetensors", tmp_path / "options.toml")
    assert read.config.attn_window == 3


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"without": ["pre_lnorm", "clamp_len"]}, ["lack clamp_len, pre_lnorm"]),
        ({"ext_len": 2}, ["ext_len is 2", "_update_mems", "--ext-len"]),
        ({"mem_len": 0, "same_length": True}, ["every key is hidden"]),
        ({"sample_softmax": 100}, ["sample_softmax is 100", "does not sample"]),
        ({"attn_type": 1}, ["attn_type is 1", "tensors have 0"]),
        ({"n_layer": 3}, ["n_layer is 3", "2"]),
        ({"n_head": 3}, ["n_head is 3", "2"]),
        ({"cutoffs": [4, 7]}, ["cutoffs is [4, 7]", "[4, 8]"]),
        ({"div_val": 4}, ["div_val is 4", "no width"]),
        ({"div_val": 1}, ["word_emb.emb_layers.1.weight"]),
        ({"tied": False}, ["tied is False", "opposite"]),
        ({"not_tied": None}, ["not_tied is None", "true or false"]),
        ({"tie_weight": False}, ["lacks crit.out_layers.0.weight"]),
        ({"tie_projs": [False, False, False]}, ["lacks crit.out_projs.1"]),
        ({"tie_projs": [True, True, True]}, ["crit.out_projs.0 and word_emb.emb_projs.0 differ"]),
        ({"same_length": 1}, ["same_length is 1", "true or false"]),
        ({"mem_len": -1}, ["mem_len is -1"]),
        ({"pre_lnorm": "yes"}, ["pre_lnorm is 'yes'"]),
    ],
)
@pytest.mark.fault("KY #104", "HF #848")
def test_options_of_the_original_that_are_refused(original, changes, facts):
    with pytest.raises(NpxlError) as error:
        original(**changes)
    for fact in facts:
        assert fact in str(error.value)


def test_cutoffs_that_no_tensor_tells_must_be_given(original):
    one_width = replace(SMALL, cutoffs=(4, 8), initial_memory="empty")
    assert original(one_width).config == one_width
    with pytest.raises(NpxlError, match="lack cutoffs, which no tensor tells"):
        original(one_width, without=["cutoffs"])


def test_distances_that_a_learned_table_clamps_are_left_out(original):
    """KY keeps the last clamp_len rows of its tables, so that the furthest is clamp_len − 1."""
    shaw = replace(SMALL, initial_memory="empty", attn_type="shaw", clamp_len=7)
    whole = model_for(shaw, dtype=np.float32)
    for clamp_len, n_rows in ((-1, 8), (8, 8), (20, 8), (3, 3)):
        model = original(shaw, clamp_len=clamp_len)
        assert model.config == replace(shaw, clamp_len=n_rows - 1)
        for n in range(shaw.n_layer):
            for name in ("relative", "relative_bias"):
                name = f"layers.{n}.attention.{name}"
                assert_eq(model.params[name], whole.params[name][-n_rows:])
    with pytest.raises(NpxlError, match="clamp_len is 0"):
        original(shaw, clamp_len=1)


@pytest.mark.fault("KY #15")
@pytest.mark.parametrize("attn_type", PLACES)
def test_places_that_the_original_adds_wrongly_are_refused(original, attn_type):
    config = replace(SMALL, attn_type=attn_type, clamp_len=4)
    config = of_the_original(replace(config, untie_r=False))
    assert original(config).config == config
    with pytest.raises(NpxlError, match=r"mem_len is 3, but .*adds places to its memory again"):
        original(config, mem_len=3)
    with pytest.raises(NpxlError, match=r"pre_lnorm is true, but .*queries of what is not"):
        original(config, pre_lnorm=True)
    if attn_type == "al-rfou":
        with pytest.raises(NpxlError, match=r"n_head × d_head = 8 .* d_model = 6"):
            original(config, fault=narrow, without=["d_model"])


def narrow(state):
    state["layers.0.pos_ff.CoreNet.0.weight"] = np.zeros((12, 6), np.float32)


def test_other_peoples_tensors_are_not_taken_for_the_originals(original):
    with pytest.raises(NpxlError, match="lacks r_w_bias"):
        original(fault=lambda state: state.pop("r_w_bias"))
    with pytest.raises(NpxlError, match="n_head, which no tensor tells with attn_type 2, is None"):
        original(fault=lambda state: state.pop("r_r_bias"), without=["n_head"])
    with pytest.raises(NpxlError, match=r"lack layers\.0\.dec_attn\.q_net\.weight"):
        original(fault=lambda state: state.pop("r_r_bias"))
    with pytest.raises(NpxlError, match=r"has layers\.0\.dec_attn\.q_net\.weight besides"):
        original(fault=lambda state: state.update({"layers.0.dec_attn.q_net.weight": np.ones(3)}))


# Hugging Face's configuration


@pytest.fixture
def theirs(tmp_path):
    """A folder of TransfoXL's, to be changed."""
    return Path(shutil.copytree(HUGGING / "adaptive", tmp_path / "theirs"))


def change_config(folder, without=(), **changes):
    values = json.loads((folder / "config.json").read_text()) | changes
    values = {name: value for name, value in values.items() if name not in without}
    (folder / "config.json").write_text(json.dumps(values))


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"attn_type": 2}, ["attn_type is 2", "code for 0 alone"]),
        ({"sample_softmax": 10}, ["sample_softmax is 10"]),
        ({"ext_len": 4}, ["ext_len is 4", "reads no token twice"]),
        ({"mem_len": 0}, ["same_length", "every key is hidden", "later ones too"]),
        ({"model_type": "gpt2"}, ["model_type is 'gpt2'"]),
        ({"without": ["model_type"]}, ["model_type is None"]),
        ({"n_token": 12}, ["vocab_size has two values", "n_token"]),
        ({"tie_weight": False}, ["tie_weight is False", "tie_word_embeddings"]),
        ({"cutoffs": 3}, ["cutoffs is 3", "list"]),
        ({"cutoffs": [4, 12]}, ["cutoffs"]),
        ({"clamp_len": "far"}, ["clamp_len is 'far'"]),
        ({"same_length": None}, ["same_length is None"]),
        ({"d_model": 9}, ["d_model is 9", "even"]),
        ({"tie_projs": [False] * 5 + [True]}, ["tie_projs"]),
        ({"vocab_size": 0}, ["vocab_size is 0"]),
        ({"dropout": float("nan")}, ["dropout is nan"]),
        ({"proj_share_all_but_first": "no"}, ["proj_share_all_but_first is 'no'", "true or false"]),
    ],
)
@pytest.mark.fault("HF 4.35.2: same_length with mem_len 0")
def test_configurations_that_are_refused(theirs, changes, facts):
    change_config(theirs, **changes)
    with pytest.raises(NpxlError) as error:
        read_transfoxl(theirs)
    for fact in [str(theirs / "config.json"), *facts]:
        assert fact in str(error.value)


def test_what_a_configuration_lacks_is_the_default_of_its_class():
    """transformers 4.35.2: the values of the released model."""
    released = config_from_transfoxl({"model_type": "transfo-xl"})
    assert released == ModelConfig(
        vocab_size=267735, n_layer=18, n_head=16, d_model=1024, d_head=64, d_inner=4096,
        mem_len=1600, attn_window=1600, clamp_len=1000, dropout=0.1, untie_r=True,
        cutoffs=(20000, 40000, 200000), div_val=4, tie_projs=(False, True, True, True),
        initial_memory="zeros",
    )  # fmt: skip
    shared = {"model_type": "transfo-xl", "proj_share_all_but_first": False}
    assert config_from_transfoxl(shared) == replace(released, tie_projs=())
    again = config_to_transfoxl(released)
    assert again["tie_projs"] == [False, True, True, True]
    assert config_from_transfoxl(again) == released


def test_other_names_of_its_options_are_understood(theirs):
    change_config(
        theirs, without=["vocab_size", "d_model", "n_head", "n_layer"], n_token=11, hidden_size=8,
        num_attention_heads=2, num_hidden_layers=2, tie_weight=True, ext_len=0,
    )  # fmt: skip
    assert read_transfoxl(theirs).config == read_transfoxl(HUGGING / "adaptive").config


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"attn_type": "shaw", "clamp_len": 4}, "only for dai"),
        ({"initial_memory": "empty"}, "--initial-memory zeros"),
        ({"ext_len": 2}, "--ext-len 0"),
        ({"attn_window": 6}, "--mem-len 6, which changes no prediction"),
        ({"attn_window": 3}, "--mem-len 3, which changes no prediction"),
        ({"attn_window": 9}, "--attn-window none"),
        ({"attn_window": 1, "mem_len": 0}, "--mem-len 1, which changes no prediction"),
    ],
)
def test_what_transfoxl_does_not_do_is_not_written(tmp_path, changes, advice):
    model = model_for(replace(SMALL, **changes), dtype=np.float32)
    with pytest.raises(NpxlError, match=advice):
        write_transfoxl(model, tmp_path / "theirs")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("window", [1, 3, 6])
def test_a_window_that_its_memory_holds_can_be_made_as_long_as_it(tmp_path, window):
    """What the error advises changes no prediction, as it says."""
    model = model_for(replace(SMALL, attn_window=window))
    convert(model, tmp_path / "theirs", mem_len=window)
    theirs = read_transfoxl(tmp_path / "theirs")
    assert (theirs.config.mem_len, theirs.config.attn_window) == (window, window)
    memory, their_memory = model.init_memory(2), theirs.init_memory(2)
    for n in range(4):
        text = tokens((2, 3), n, 11)
        expected, memory = model.log_probs(text, memory)
        found, their_memory = theirs.log_probs(text, their_memory)
        assert_eq(found, expected, rtol=1e-13)


# Tensors


def drop(state):
    state.pop("transformer.layers.1.dec_attn.o_net.weight")


def add(state):
    state["transformer.layers.2.dec_attn.o_net.weight"] = np.zeros((8, 12), np.float32)


def transpose(state):
    name = "transformer.layers.1.pos_ff.CoreNet.0.weight"
    state[name] = np.ascontiguousarray(state[name].T)


def count(state):
    state["crit.cluster_bias"] = np.array([1, 2])


def untie(state):
    name = "crit.out_layers.1.weight"
    state[name] = state["transformer.word_emb.emb_layers.1.weight"] + np.float32(1e-3)


def slow(state):
    state["transformer.pos_emb.inv_freq"] *= np.float32(1.001)


@pytest.mark.parametrize(
    ("fault", "facts"),
    [
        (drop, ["lacks transformer.layers.1.dec_attn.o_net.weight"]),
        (add, ["has transformer.layers.2.dec_attn.o_net.weight besides"]),
        (transpose, ["layers.1.pos_ff.CoreNet.0.weight has shape (8, 12)", "(12, 8)"]),
        (count, ["crit.cluster_bias is of type int64"]),
        (untie, ["crit.out_layers.1.weight", "emb_layers.1.weight", "differ"]),
        (slow, ["transformer.pos_emb.inv_freq is not 10000^"]),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(theirs, fault, facts):
    path = theirs / "model.safetensors"
    state = safetensors.numpy.load_file(path)
    names = tensors(read_transfoxl(theirs).config, HUGGING_FACE)
    state = {each.names[0]: state[n] for each in names for n in each.names if n in state}
    safetensors.numpy.save_file(state, path)
    read_transfoxl(theirs)  # under other names it is the same
    fault(state)
    safetensors.numpy.save_file(state, path)
    with pytest.raises(NpxlError) as error:
        read_transfoxl(theirs)
    for fact in [str(path), *facts]:
        assert fact in str(error.value)


def test_copies_of_tied_tensors_are_read_and_constants_may_be_left_out(theirs):
    path = theirs / "model.safetensors"
    expected = read_transfoxl(theirs)
    state = safetensors.numpy.load_file(path)
    for tensor in tensors(expected.config, HUGGING_FACE):
        value = next(state[name] for name in tensor.names if name in state)
        state |= dict.fromkeys(tensor.names, value)
    del state["transformer.pos_emb.inv_freq"]
    safetensors.numpy.save_file(state, path)
    assert_eq(read_transfoxl(theirs).params.flat, expected.params.flat)


def test_half_precision_is_read_exactly_but_for_frequencies_that_it_rounds(theirs):
    path = theirs / "model.safetensors"
    state = safetensors.numpy.load_file(path)
    halves = {name: value.astype(np.float16) for name, value in state.items()}
    safetensors.numpy.save_file(halves, path)
    with pytest.raises(NpxlError, match=r"inv_freq is not.*leave it out"):
        read_transfoxl(theirs)
    del halves["transformer.pos_emb.inv_freq"]
    safetensors.numpy.save_file(halves, path)
    model = read_transfoxl(theirs)
    assert model.dtype == np.float32
    for tensor in tensors(model.config, HUGGING_FACE):
        if tensor.parts:
            name = next(name for name in tensor.names if name in halves)
            assert_eq(assembled(tensor, model.params), halves[name].astype(np.float32))


def test_what_torch_saved_needs_torch(theirs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (theirs / "model.safetensors").rename(theirs / "pytorch_model.bin")
    with pytest.raises(NpxlError, match=r"pytorch_model\.bin.*pip install 'npxl\[torch\]'"):
        read_transfoxl(theirs)
    (theirs / "pytorch_model.bin").unlink()
    with pytest.raises(NpxlError, match="has neither model"):
        read_transfoxl(theirs)


# Converting


@pytest.mark.fault("safetensors #458")
def test_one_copy_of_the_model_is_in_memory(tmp_path):
    model = model_for(replace(SMALL, vocab_size=200_000, d_inner=200_000), dtype=np.float32)
    size = model.params.flat.nbytes
    model.save(tmp_path / "ours.safetensors")
    del model
    table = 200_000 * 8 * 4
    for source, out in (("ours.safetensors", "theirs"), ("theirs", "again.safetensors")):
        tracemalloc.start()
        convert(tmp_path / source, tmp_path / out)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert size < peak < size + 2.5 * table
    # Names, not bytes: the header's metadata is the same too.
    assert (tmp_path / "again.safetensors").read_bytes() == (
        tmp_path / "ours.safetensors"
    ).read_bytes()


def test_what_exists_is_not_overwritten_and_a_failure_leaves_nothing(tmp_path, monkeypatch):
    source = HUGGING / "plain"
    (tmp_path / "there").write_text("mine")
    with pytest.raises(NpxlError, match="there exists, and nothing is overwritten"):
        convert(source, tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    (tmp_path / "there").unlink()

    def fails(tensor, params):
        if "o_net" in tensor.names[0]:
            raise KeyboardInterrupt
        return assembled(tensor, params)

    monkeypatch.setattr("npxl.interop.transfoxl.assembled", fails)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "theirs", "transfoxl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_conversion_that_is_stopped_says_so_and_leaves_nothing(
    tmp_path, monkeypatch, capsys, number
):
    def stopped(tensor, params):
        os.kill(os.getpid(), number)
        return assembled(tensor, params)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background
    monkeypatch.setattr("npxl.interop.transfoxl.assembled", stopped)
    words = ["convert", str(HUGGING / "plain"), "--out", str(tmp_path / "x"), "--to", "transfoxl"]
    try:
        assert main(words) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().err == "npxl: Stopped.\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not list(tmp_path.iterdir())


def test_convert_between_all_three_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = str(HUGGING / "adaptive")
    assert main(["convert", source, "--out", "ours.safetensors", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["from"], values["to"], values["dtype"]) == ("transfoxl", "npxl", "float32")
    model = npxl.load("ours.safetensors")
    assert values["parameters"] == model.params.flat.size
    assert values["model"]["cutoffs"] == [4, 8]
    (row,) = (row for row in values["tensors"] if "qkv_net" in row["names"][0])
    assert row["tensors"] == 2
    assert row["npxl"] == [f"layers.{{n}}.attention.{w}" for w in ("w_q", "w_k", "w_v")]

    assert main(["convert", "ours.safetensors", "--out", "theirs"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"crit\.out_projs\.0 +softmax\.0\.projection +8×8 +1\n", out)
    assert read_transfoxl("theirs").config == model.config

    untied = replace(ADAPTIVE, initial_memory="empty", attn_window=5)
    safetensors.numpy.save_file(
        state_of(model_for(untied, dtype=np.float32), ORIGINAL), "s.safetensors"
    )
    Path("s.json").write_text(json.dumps(options_of(untied)))
    words = ["convert", "s.safetensors", "--args", "s.json", "--out", "there", "--to", "transfoxl"]
    assert main(words) == 2
    assert "--initial-memory zeros" in capsys.readouterr().err
    assert main([*words, "--initial-memory", "zeros", "--clamp-len", "2"]) == 0
    assert read_transfoxl("there").config == replace(untied, initial_memory="zeros", clamp_len=2)
    assert "[::-1]" in capsys.readouterr().out


def test_a_run_is_converted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = create(tmp_path / "run", write_text(tmp_path / "text.txt"))
    words = ["convert", "run", "--out", "theirs", "--initial-memory", "zeros"]
    assert main([*words, "--args", "run/run.json"]) == 2
    assert main(words) == 0
    assert_eq(read_transfoxl("theirs").params.flat, run.model().params.flat)
    with pytest.raises(NpxlError, match="this is a model of npxl, which has its own"):
        convert(run.model(), "again", options={"mem_len": 3})


def test_no_tensor_of_pytorchs_is_named_where_none_is_converted(tmp_path, capsys):
    """A copy for npxl, here of what PyTorch's TransfoXL has no tensors for."""
    model = model_for(replace(SMALL, attn_type="al-rfou", clamp_len=3), dtype=np.float32)
    model.save(tmp_path / "ours.safetensors")
    words = ["convert", str(tmp_path / "ours.safetensors"), "--to", "npxl", "--mem-len", "2"]
    assert main([*words, "--out", str(tmp_path / "short.safetensors")]) == 0
    assert "PyTorch" not in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "again.safetensors"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tensors"] == []
    assert npxl.load(tmp_path / "short.safetensors").config == replace(model.config, mem_len=2)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere", "--out", "x"], "There is no file nowhere"),
        (["plain", "--out", "plain"], "plain exists"),
        (["plain", "--out", "no/such/x.safetensors"], "cannot be written"),
        (["plain"], "--out"),
        (["empty", "--out", "x"], "config.json cannot be read"),
        (["plain/expected.npz", "--out", "x"], "--args FILE"),
        (["plain/model.safetensors", "--out", "x"], "--args FILE"),
        (
            ["plain/model.safetensors", "--out", "x", "--args", "plain/config.json"],
            "lack layers.0.pos_ff",
        ),
        (["plain/model.safetensors", "--out", "x", "--args", "none.json"], "none.json cannot be"),
        (["plain", "--out", "x", "--args", "plain/config.json"], "plain is a folder, but options"),
        (["plain", "--out", "x", "--checkpoint", "last"], "plain is no run"),
        (["plain", "--out", "x", "--mem-len", "-1"], "mem_len is -1"),
        (["plain", "--out", "x", "--to", "tensorflow"], "tensorflow"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, words, sentence):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(HUGGING / "plain", "plain")
    change_config(Path("plain"), mem_len=5, clamp_len=-1)
    Path("empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert main(["convert", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(tmp_path.rglob("*")) == before
