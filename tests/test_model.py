"""The whole model against the reference, and what its public methods promise."""

import copy as copying
import dataclasses
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from numerical import assert_eq, seeds
from support import each_kind, model_for, tokens

from npxl import (
    IGNORE,
    LSTMConfig,
    MaskKey,
    Memory,
    ModelConfig,
    NpxlError,
    Params,
    TransformerXL,
    reference,
)
from npxl.config import with_options
from npxl.kernels.vectors import LANES
from npxl.models.architectures import model_class
from npxl.references import reference_mask
from npxl.testing.strategies import ATTN_TYPES, LEARNED, configs

SMALL = ModelConfig(vocab_size=5, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=5, mem_len=4)
SMALL_LSTM = LSTMConfig(vocab_size=5, n_layer=2, d_model=6)
VANILLA = dataclasses.replace(SMALL, mem_len=0, attn_type="al-rfou", clamp_len=9)
each_small = pytest.mark.parametrize("config", [SMALL, SMALL_LSTM], ids=["transformer-xl", "lstm"])
# With two hidden units layer normalisation returns ±1 and forgets what it was given.
widths = st.sampled_from([4, 6, 8])


def batch(config, tgt_len=4, batch_size=2, seed=0):
    """Inputs [B, E+T] and targets [B, T]."""
    text = tokens((batch_size, config.ext_len + tgt_len + 1), seed, config.vocab_size)
    return text[:, :-1], text[:, config.ext_len + 1 :]


def some_memory(model, batch_size=2, length=3, seed=0):
    config = model.config
    length = 2 if config.mem_len is None else length  # h and c
    shape = (config.n_layer, batch_size, length, config.d_model)
    return Memory(np.random.default_rng(seed).standard_normal(shape).astype(model.dtype))


ONE_OF_EACH = ModelConfig(
    vocab_size=2, n_layer=1, n_head=1, d_model=2, d_head=1, d_inner=1, mem_len=0, attn_window=1
)


@pytest.mark.fault("HF #9129")
@example(config=ONE_OF_EACH, tgt_lens=[1], batch_size=1, seed=0, trained=False)
@example(config=SMALL, tgt_lens=[1, 1, 3], batch_size=1, seed=0, trained=True)
@example(config=VANILLA, tgt_lens=[3, 1], batch_size=2, seed=0, trained=True)
@given(
    config=configs(),
    tgt_lens=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    batch_size=st.integers(1, 2),
    seed=seeds,
    trained=st.booleans(),
)
def test_segment_after_segment_is_the_references(config, tgt_lens, batch_size, seed, trained):
    model = model_for(config, seed)
    memory = model.init_memory(batch_size)
    reference_memory = list(memory.layers)
    for step, tgt_len in enumerate(tgt_lens):
        inputs, targets = batch(config, tgt_len, batch_size, seed + step)
        key = MaskKey(seed, step) if trained else None
        expected = reference.forward(
            model.params, config, inputs, targets, reference_memory, reference_mask(key, config)
        )
        fwd = model.forward(inputs, targets, memory, key)
        assert_eq(fwd.nll, expected.nll, rtol=1e-10)
        assert_eq(fwd.memory.states, np.array(expected.memory), rtol=1e-10)
        if not trained:
            log_probs, after = model.log_probs(inputs, memory)
            assert_eq(log_probs[:, -tgt_len:], expected.log_probs, rtol=1e-10)
            assert_eq(after.states, fwd.memory.states)
        memory, reference_memory = fwd.memory, expected.memory


@pytest.mark.fault("KY #98", "HF #3711", "HF #4698", "HF #4054")
@each_kind(dropout=0.0, dropatt=0.0)
@given(data=st.data(), seed=seeds)
def test_nll_is_read_off_the_log_probabilities(configs, data, seed):
    config = data.draw(configs)
    model = model_for(config, seed)
    inputs, targets = batch(config, seed=seed)
    memory = some_memory(model)
    log_probs, _ = model.log_probs(inputs, memory)
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1, rtol=1e-12)
    scored = log_probs[:, config.ext_len :]
    nll = model.forward(inputs, targets, memory).nll
    assert_eq(nll, -np.take_along_axis(scored, targets[..., None], 2)[..., 0], rtol=1e-12)


@given(config=configs(d_model=widths), seed=seeds)
def test_float32_is_near_float64(config, seed):
    double = model_for(config, seed)
    single = TransformerXL(config, params=double.params.astype(np.float32))
    inputs, targets = batch(config, seed=seed)
    memory = some_memory(double)
    low = single.forward(inputs, targets, Memory(memory.states.astype(np.float32)), MaskKey(1))
    high = double.forward(inputs, targets, memory, MaskKey(1))
    np.testing.assert_allclose(low.nll, high.nll, rtol=0, atol=1e-3)


def floating_arrays(value, path="fwd"):
    """Every array of floating-point numbers inside `value`, with where it is."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            yield path, value
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name in value._fields:
            yield from floating_arrays(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, (list, tuple)):
        for n, item in enumerate(value):
            yield from floating_arrays(item, f"{path}[{n}]")
    elif isinstance(value, Memory):
        yield path, value.states
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from floating_arrays(getattr(value, field.name), f"{path}.{field.name}")


@pytest.mark.fault("HF 4.35.2: float64 refused")
@pytest.mark.parametrize(
    "config",
    [
        *(
            dataclasses.replace(SMALL, pre_lnorm=pre_lnorm, attn_type=attn_type, clamp_len=2)
            for pre_lnorm in (False, True)
            for attn_type in ATTN_TYPES
        ),
        VANILLA,
        SMALL_LSTM,
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_on_the_way_has_another_precision(dtype, config):
    config = with_options(config, dropout=0.2, dropatt=0.2)
    model = model_class(config)(config, dtype=dtype)
    inputs, targets = batch(config)
    fwd = model.forward(inputs, targets, some_memory(model), MaskKey(1))
    arrays = dict(floating_arrays(fwd))
    assert len(arrays) > (20 if config.attends else 10)
    assert {path for path, array in arrays.items() if array.dtype != dtype} == set()
    assert model.backward(fwd).dtype == dtype
    assert model.log_probs(inputs, some_memory(model))[0].dtype == dtype


def test_compiled_and_plain_kernels_agree(tmp_path):
    script = """
import sys
import numpy as np
from test_model import everything
np.savez(sys.argv[1], *everything())
"""
    here = Path(__file__).parent
    other = "0" if numba.config.DISABLE_JIT else "1"
    paths = os.pathsep.join([str(here), *sys.path])
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "plain.npz")],
        env={**os.environ, "NUMBA_DISABLE_JIT": other, "PYTHONPATH": paths},
        check=True,
    )
    with np.load(tmp_path / "plain.npz") as plain:
        results = list(plain.values())
    for compiled, result in zip(everything(), results, strict=True):
        assert_eq(result, compiled, rtol=1e-13 if compiled.dtype == np.float64 else 1e-5)


def test_vectors_of_8_and_of_16_numbers_agree(tmp_path):
    """The width that this processor's registers have not, as plain Python, which any can run."""
    script = """
import sys
import numpy as np
from test_model import LANES, many_tiles
np.savez(sys.argv[1], LANES, *many_tiles())
"""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    features = "+avx512f" if LANES == 8 else ""
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "other.npz")],
        env={
            **os.environ, "NUMBA_DISABLE_JIT": "1", "NUMBA_CPU_FEATURES": features,
            "PYTHONPATH": paths,
        },
        check=True,
    )  # fmt: skip
    with np.load(tmp_path / "other.npz") as other:
        lanes, *results = other.values()
    assert {LANES, int(lanes)} == {8, 16}
    for ours, result in zip(many_tiles(), results, strict=True):
        assert_eq(result, ours, rtol=1e-10, atol=1e-13)


def many_tiles():
    """`one_segment` of shapes with several tiles at either width, and what their readers say."""
    wide = dataclasses.replace(SMALL, n_head=1, d_head=33, mem_len=40, attn_window=38)
    for config in (wide, dataclasses.replace(SMALL_LSTM, d_model=19)):
        model = model_for(config)
        yield from one_segment(model, length=40)
        text = tokens((1, 36))
        one_by_one = model.continuation(None)
        one_by_one.log_probs(text[:, :34])
        yield from (one_by_one.log_probs(text[:, n : n + 1]) for n in (34, 35))


def everything():
    """Scores, memory and gradients of one segment in both precisions, with dropout and memory."""
    config = dataclasses.replace(SMALL, dropout=0.2, dropatt=0.2, attn_window=5, ext_len=1)
    for attn_type, dtype in itertools.product(ATTN_TYPES, (np.float64, np.float32)):
        config = dataclasses.replace(config, attn_type=attn_type, clamp_len=3)
        yield from one_segment(model_for(config, dtype=dtype))
    config = dataclasses.replace(SMALL_LSTM, dropout=0.2)
    for dtype in (np.float64, np.float32):
        yield from one_segment(model_for(config, dtype=dtype))


def one_segment(model, length=3):
    fwd = model.forward(*batch(model.config), some_memory(model, length=length), MaskKey(1))
    yield from (fwd.nll, fwd.memory.states, model.backward(fwd).flat)


@each_kind(d_model=widths, d_inner=st.integers(5, 8), ext_len=0)
@given(data=st.data(), seed=seeds)
def test_every_parameter_gets_a_gradient(configs, data, seed):
    config = data.draw(configs)
    assume(config.attn_window != 1)  # a query that sees one key has nothing to weigh
    model = model_for(config, seed)
    draw = np.random.default_rng(seed)  # every symbol among inputs and targets
    inputs, targets = (draw.permutation(np.arange(18) % config.vocab_size) for _ in range(2))
    inputs, targets = inputs.reshape(3, 6), targets.reshape(3, 6)
    grads = model.backward(model.forward(inputs, targets, some_memory(model, 3), MaskKey(seed)))
    assert grads.shapes == model.params.shapes
    assert np.isfinite(grads.flat).all()
    certain = {  # what has to choose among one symbol
        f"softmax.{i}.{kind}"
        for i, symbols in enumerate(config.clusters)
        for kind in ("weight", "projection")
        if i > 0 and len(symbols) == 1
    }
    assert {name for name, gradient in grads.items() if not gradient.any()} <= certain


@pytest.mark.fault("HF #6236")
@pytest.mark.parametrize(
    "config",
    [
        *(dataclasses.replace(SMALL, attn_type=each, clamp_len=2) for each in ATTN_TYPES),
        SMALL_LSTM,
    ],
)
@pytest.mark.parametrize(
    "changes",
    [
        {"tie_weight": False},
        {"cutoffs": (2, 3)},
        {"cutoffs": (2,), "div_val": 2, "tie_weight": False, "tie_projs": (False, True)},
        {"pre_lnorm": True},
    ],
)
def test_a_new_model_sends_a_gradient_to_every_parameter(config, changes):
    """As it is initialised: an output of zeros would send nothing back, to nothing before it."""
    config = with_options(config, **changes)
    model = model_class(config)(config, dtype=np.float64)
    inputs, targets = batch(config, 7)
    grads = model.backward(model.forward(inputs, targets, some_memory(model)))
    assert {name for name, gradient in grads.items() if not gradient.any()} == set()


def tied_to(name, config):
    """Which tensor of a model stands for one of the same model with nothing tied."""
    part, *_, kind = name.split(".")
    if part == "softmax" and kind == "weight" and config.tie_weight:
        return name.replace("softmax", "embedding")
    if part == "softmax" and kind == "projection" and config.tie_projs:
        i = int(name.split(".")[1])
        if config.tie_projs[i]:
            return "embedding.projection" if config.div_val == 1 else f"embedding.{i}.projection"
    return name


@pytest.mark.fault("HF #848")
@each_kind()
@given(data=st.data(), seed=seeds)
def test_a_tied_gradient_is_the_sum_of_the_untied(configs, data, seed):
    config = data.draw(configs)
    tied = model_for(config, seed)
    nothing_tied = dataclasses.replace(config, tie_weight=False, tie_projs=())
    untied = model_class(config)(nothing_tied, dtype=np.float64)
    untied.params.assign({name: tied.params[tied_to(name, config)] for name in untied.params})
    inputs, targets = batch(config, seed=seed)
    of_tied, of_untied = (
        model.backward(model.forward(inputs, targets, some_memory(model), MaskKey(seed)))
        for model in (tied, untied)
    )
    sums = tied.params.zeros_like()
    for name, gradient in of_untied.items():
        sums[tied_to(name, config)][...] += gradient
    for name, gradient in of_tied.items():
        assert_eq(gradient, sums[name], rtol=1e-12, atol=1e-13)


@each_kind()
@given(data=st.data(), seed=seeds)
def test_targets_to_ignore_have_no_loss_and_no_gradient(configs, data, seed):
    """The mean is that of the others, of which a batch may have none."""
    config = data.draw(configs)
    model = model_for(config, seed)
    inputs, targets = batch(config, seed=seed)
    some = np.where(np.random.default_rng(seed).random(targets.shape) < 0.5, IGNORE, targets)
    full, fwd = (
        model.forward(inputs, y, some_memory(model), MaskKey(seed)) for y in (targets, some)
    )
    assert_eq(fwd.nll, np.where(some == IGNORE, 0, full.nll), rtol=1e-13)
    weights = (some != IGNORE) / max(1, (some != IGNORE).sum())
    assert_eq(model.backward(fwd).flat, model.backward(full, weights).flat, rtol=1e-12)

    fwd = model.forward(inputs, np.full_like(targets, IGNORE), some_memory(model), MaskKey(seed))
    assert not fwd.nll.any()
    assert not model.backward(fwd).flat.any()
    assert not model.backward(fwd, np.ones(targets.shape)).flat.any()
    assert "mean 0 nats" in repr(fwd)


@each_kind()
@given(data=st.data(), seed=seeds)
def test_backward_is_linear_in_its_cotangent_and_adds(configs, data, seed):
    config = data.draw(configs)
    model = model_for(config, seed)
    inputs, targets = batch(config, seed=seed)
    fwd = model.forward(inputs, targets, some_memory(model), MaskKey(seed))
    draw = np.random.default_rng(seed)
    one, two = draw.standard_normal((2, *targets.shape))
    both = model.backward(fwd, 2 * one - two)
    added = model.backward(fwd, 2 * one)
    assert model.backward(fwd, -two, added) is added
    assert_eq(added.flat, both.flat, rtol=1e-12, atol=1e-13)
    mean = model.backward(fwd, np.full(targets.shape, 1 / targets.size))
    assert_eq(model.backward(fwd).flat, mean.flat)


@each_kind()
@given(data=st.data(), seed=seeds)
def test_a_token_that_is_not_scored_sends_no_gradient(configs, data, seed):
    config = data.draw(configs)
    model = model_for(config, seed)
    inputs, targets = batch(config, seed=seed)
    fwd = model.forward(inputs, targets, some_memory(model), MaskKey(seed))
    assert not model.backward(fwd, np.zeros(targets.shape)).flat.any()


@each_kind()
@given(data=st.data(), seed=seeds)
def test_calls_leave_everything_as_it_was(configs, data, seed):
    config = data.draw(configs)
    model = model_for(config, seed)
    inputs, targets = batch(config, seed=seed)
    memory = some_memory(model)
    held = [inputs, targets, memory.states, model.params.flat]
    before = [array.copy() for array in held]
    fwd = model.forward(inputs, targets, memory, MaskKey(seed))
    nll, after, grads = fwd.nll.copy(), fwd.memory.states.copy(), model.backward(fwd)
    again = model.forward(inputs, targets, memory, MaskKey(seed))
    model.log_probs(inputs, memory)
    for array, copy in zip(held, before, strict=True):
        assert_eq(array, copy)
    assert_eq(again.nll, nll)
    assert_eq(again.memory.states, after)
    assert_eq(model.backward(fwd).flat, grads.flat)
    assert_eq(model.backward(again).flat, grads.flat)
    assert_eq(fwd.memory.states, after)


@each_small
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16, np.int32, np.uint64, ">i8"])
def test_tokens_of_any_integer_type_are_the_same_tokens(dtype, config):
    model = model_for(config)
    inputs, targets = batch(config)
    memory = some_memory(model)
    expected = model.forward(inputs, targets, memory)
    fwd = model.forward(inputs.astype(dtype), targets.astype(dtype), memory)
    assert_eq(fwd.nll, expected.nll)
    assert_eq(model.backward(fwd).flat, model.backward(expected).flat)


@each_small
def test_tokens_may_be_lists_and_views(config):
    model = model_for(config)
    inputs, targets = batch(config)
    expected = model.forward(inputs, targets, some_memory(model))
    lists = model.forward(inputs.tolist(), targets.tolist(), some_memory(model))
    view = model.forward(
        np.asfortranarray(inputs), np.repeat(targets, 2, axis=1)[:, ::2], some_memory(model)
    )
    for fwd in (lists, view):
        assert_eq(fwd.nll, expected.nll)
        assert_eq(model.backward(fwd).flat, model.backward(expected).flat)


@each_small
def test_tokens_changed_after_forward_do_not_change_the_gradient(config):
    model = model_for(config)
    inputs, targets = batch(config)
    forward = model.forward(inputs, targets, some_memory(model))
    expected = model.backward(forward).flat.copy()
    inputs[...], targets[...] = 0, 1
    assert_eq(model.backward(forward).flat, expected)


def test_rows_of_several_lengths_are_an_error():
    model = model_for(SMALL)
    rows, memory = [[1, 2], [3]], model.init_memory(2)
    with pytest.raises(NpxlError, match="inputs must be an array"):
        model.log_probs(rows, memory)
    with pytest.raises(NpxlError, match="targets must be an array"):
        model.forward([[1, 2], [3, 4]], rows, memory)
    with pytest.raises(NpxlError, match="dnll must be an array"):
        model.backward(model.forward([[1, 2], [3, 4]], [[1, 2], [3, 4]], memory), dnll=rows)


@pytest.mark.parametrize(
    "copied", [copying.copy, copying.deepcopy, lambda model: pickle.loads(pickle.dumps(model))]
)
@each_small
def test_a_copied_models_tensors_are_views_of_its_vector(copied, config):
    params = copied(model_for(config)).params
    params.flat[...] = 7
    assert all((tensor == 7).all() for tensor in params.values())


@each_small
def test_without_rng_nothing_is_dropped(config):
    model = model_for(with_options(config, dropout=0.5, dropatt=0.5))
    inputs, targets = batch(config)
    kept = model_class(config)(config, params=model.params)
    memory = some_memory(model)
    expected = kept.forward(inputs, targets, memory, MaskKey(1)).nll
    assert_eq(model.forward(inputs, targets, memory).nll, expected)
    masked = [model.forward(inputs, targets, memory, MaskKey(1, step)).nll for step in (0, 1)]
    assert np.abs(masked[0] - expected).max() > 1e-3
    assert np.abs(masked[0] - masked[1]).max() > 1e-3


@each_small
def test_a_generator_draws_one_key(config):
    model = model_for(dataclasses.replace(config, dropout=0.5))
    inputs, targets = batch(config)
    first, again = np.random.default_rng(1), np.random.default_rng(1)
    nll = [
        model.forward(inputs, targets, some_memory(model), rng).nll for rng in (first, again, first)
    ]
    assert_eq(nll[0], nll[1])
    assert np.abs(nll[0] - nll[2]).max() > 1e-3


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        dataclasses.replace(SMALL, untie_r=True),
        dataclasses.replace(SMALL, attn_type="shaw", clamp_len=3),
        VANILLA,
        SMALL_LSTM,
    ],
)
def test_a_seed_says_what_the_parameters_are(config):
    kind = model_class(config)
    model = kind(config, seed=3)
    assert model.params.flat.tobytes() == kind(config, seed=3).params.flat.tobytes()
    assert (model.params.flat != kind(config, seed=4).params.flat).mean() > 0.5
    double = kind(config, seed=3, dtype=np.float64)
    assert_eq(model.params.flat, double.params.flat.astype(np.float32))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"attn_type": "shaw", "clamp_len": 99},
        {"cutoffs": (99, 150), "div_val": 4, "proj_init_std": 0.2},
        {"d_embed": 2**14, "proj_init_std": 0.2},  # a table drawn in parts
    ],
)
def test_initial_parameters_are_drawn_as_in_the_original(changes):
    config = ModelConfig(n_layer=1, init_std=0.05, tie_weight=False, **changes)
    for name, tensor in TransformerXL(config, dtype=np.float64).params.items():
        kind = name.rpartition(".")[2]
        if kind in ("bias", "relative_bias", "cluster_bias", "b_1", "b_2"):
            assert not tensor.any()
        else:
            std = config.proj_init_std if kind == "projection" else 0.05
            error = 6 / np.sqrt(tensor.size)  # six standard errors
            assert tensor.mean() == pytest.approx(1 if kind == "gain" else 0, abs=std * error)
            assert tensor.std() == pytest.approx(std, rel=error)


def test_reconfigured_shares_the_parameters():
    model = model_for(SMALL)
    changes = dict(
        mem_len=9, attn_window=3, clamp_len=2, ext_len=1, dropout=0.1, dropatt=0.2,
        initial_memory="zeros",
    )  # fmt: skip
    other = model.reconfigured(**changes)
    assert other.config == dataclasses.replace(SMALL, **changes)
    assert other.params.flat is model.params.flat
    assert model.config == SMALL


@pytest.mark.parametrize("attn_type", LEARNED)
def test_reconfigured_cannot_change_the_rows_of_a_table(attn_type):
    model = model_for(dataclasses.replace(SMALL, attn_type=attn_type, clamp_len=3))
    assert model.reconfigured(mem_len=9).params.flat is model.params.flat
    with pytest.raises(NpxlError, match=r"cannot change clamp_len: .*can change mem_len, attn_win"):
        model.reconfigured(mem_len=9, clamp_len=5)


@pytest.mark.parametrize(
    "changes",
    [{"n_layer": 1}, {"d_head": 2}, {"tie_weight": False}, {"cutoffs": (2,)}, {"d_embed": 3},
     {"untie_r": True}, {"pre_lnorm": True}, {"layer_norm_epsilon": 0.1},
     {"mem_len": 3, "init_std": 0.1}],
)  # fmt: skip
def test_reconfigured_rejects_what_would_make_another_model(changes):
    with pytest.raises(NpxlError, match=rf"cannot change {list(changes)[-1]}.*can change mem_len"):
        model_for(SMALL).reconfigured(**changes)


def test_reconfigured_names_an_option_that_there_is_not():
    with pytest.raises(NpxlError, match="no option 'mem_length'"):
        model_for(SMALL).reconfigured(mem_length=3)


def test_parameters_are_views_of_one_vector_in_order():
    model = TransformerXL(SMALL)
    model.params.flat[...] = np.arange(model.params.flat.size)
    in_order = np.concatenate([tensor.ravel() for tensor in model.params.values()])
    assert_eq(in_order, model.params.flat)


def call(method="forward", inputs=None, targets=None, memory=None, **options):
    """One call that is right but for what is given."""
    model = model_for(SMALL)
    right_inputs, right_targets = batch(SMALL)
    inputs = right_inputs if inputs is None else inputs
    memory = some_memory(model) if memory is None else memory
    if method == "log_probs":
        return model.log_probs(inputs, memory)
    return model.forward(inputs, right_targets if targets is None else targets, memory, **options)


EMPTY_BATCH, EMPTY_SEGMENT = np.zeros((0, 4), int), np.zeros((2, 0), int)


@pytest.mark.parametrize("method", ["forward", "log_probs"])
@pytest.mark.parametrize(
    ("inputs", "facts"),
    [
        (np.array([[0, 1, 2, 5]] * 2), ["inputs", "0 to 5", "0 to 4"]),
        (np.array([[0, -1, 2, 4]] * 2), ["inputs", "-1 to 4", "0 to 4"]),
        (np.zeros((2, 4)), ["inputs", "float64", "whole numbers"]),
        (np.zeros((2, 4), bool), ["inputs", "bool", "whole numbers"]),
        (np.zeros(4, int), ["inputs", "(4,)", "[batch, length]"]),
        (np.zeros((2, 4, 1), int), ["inputs", "(2, 4, 1)"]),
        (EMPTY_BATCH, ["inputs", "(0, 4)"]),
        (EMPTY_SEGMENT, ["inputs", "(2, 0)"]),
    ],
)
def test_wrong_inputs_are_an_error_with_the_facts(method, inputs, facts):
    with pytest.raises(NpxlError) as error:
        call(method, inputs=inputs)
    for fact in facts:
        assert fact in str(error.value)


@pytest.mark.parametrize(
    ("targets", "facts"),
    [
        (np.full((2, 4), 5), ["targets", "5 to 5", "0 to 4"]),
        (np.full((2, 4), -2), ["targets", "-2 to -2", "0 to 4", "-1 is for what is not scored"]),
        (np.zeros((2, 4)), ["targets", "float64"]),
        (EMPTY_SEGMENT, ["targets", "(2, 0)"]),
        (np.zeros((2, 5), int), ["(2, 5)", "(2, 4)", "no more targets than inputs"]),
        (np.zeros((3, 4), int), ["(3, 4)", "(2, 4)", "as many rows"]),
    ],
)
def test_wrong_targets_are_an_error_with_the_facts(targets, facts):
    with pytest.raises(NpxlError) as error:
        call(targets=targets)
    for fact in facts:
        assert fact in str(error.value)


@pytest.mark.fault("tensor2tensor #1707", "labml #285", "HF #7584")
@pytest.mark.parametrize("method", ["forward", "log_probs"])
@pytest.mark.parametrize(
    ("shape", "dtype", "facts"),
    [
        ((2, 3, 3, 6), np.float64, ["(2, 3, 3, 6)", "(2, 2, 3, 6)", "init_memory(2)", "select"]),
        ((3, 2, 3, 6), np.float64, ["(3, 2, 3, 6)", "(2, 2, 3, 6)"]),
        ((2, 2, 3, 4), np.float64, ["(2, 2, 3, 4)", "(2, 2, 3, 6)"]),
        ((2, 2, 3, 6), np.float32, ["float32", "float64", "init_memory(2)"]),
    ],
)
def test_a_wrong_memory_is_an_error_with_the_facts(method, shape, dtype, facts):
    with pytest.raises(NpxlError) as error:
        call(method, memory=Memory(np.zeros(shape, dtype)))
    for fact in facts:
        assert fact in str(error.value)


def test_a_wrong_rng_is_an_error_that_says_what_to_pass():
    with pytest.raises(NpxlError, match=r"rng is 3.*MaskKey"):
        call(rng=3)


@pytest.mark.parametrize("method", ["forward", "log_probs"])
@pytest.mark.parametrize(
    ("memory", "fact"), [([], "list"), (np.zeros((2, 2, 3, 6)), r"array of shape \(2, 2, 3, 6\)")]
)
def test_a_memory_is_no_list_and_no_array(method, memory, fact):
    with pytest.raises(NpxlError, match=rf"memory is .*{fact}.*init_memory\(2\)"):
        call(method, memory=memory)


def test_a_memory_is_not_none():
    model = model_for(SMALL)
    for wrong in (
        lambda: model.forward(*batch(SMALL), None),
        lambda: model.log_probs(batch(SMALL)[0], None),
    ):
        with pytest.raises(NpxlError, match=r"memory is None.*init_memory\(2\)"):
            wrong()


@pytest.mark.parametrize(
    ("embedded", "fact"),
    [
        (np.zeros((2, 3, 6)), r"\(2, 3, 6\).*\(2, 4, 6\)"),
        (np.zeros((2, 4, 6), np.float32), "float32.*float64"),
        (np.zeros((2, 4, 6)).tolist(), "list"),
    ],
)
def test_a_wrong_embedding_is_an_error_with_the_facts(embedded, fact):
    with pytest.raises(NpxlError, match=f"embedded is .*{fact}.*model.embed"):
        call(embedded=embedded)


def test_an_embedding_may_be_given():
    model = model_for(SMALL)
    inputs, targets = batch(SMALL)
    fwd = model.forward(inputs, targets, some_memory(model), embedded=model.embed(inputs))
    assert_eq(fwd.nll, call().nll)


@pytest.mark.parametrize(
    ("dnll", "fact"),
    [
        (np.zeros((4, 2)), r"dnll has shape \(4, 2\), but nll has \(2, 4\)"),
        (np.zeros((2, 4), complex), "dnll is of type complex128.*real numbers"),
        ([["1"] * 4] * 2, "dnll is of type <U1.*real numbers"),
    ],
)
def test_a_wrong_cotangent_is_an_error_with_the_facts(dnll, fact):
    model = model_for(SMALL)
    fwd = model.forward(*batch(SMALL), some_memory(model))
    for method in (model.backward, model.input_gradient):
        with pytest.raises(NpxlError, match=fact):
            method(fwd, dnll)


@pytest.mark.parametrize(
    ("grads", "fact"),
    [
        (model_for(dataclasses.replace(SMALL, d_inner=4)).params, r"w_1 has shape \(4, 6\).*5, 6"),
        (model_for(dataclasses.replace(SMALL, n_layer=1)).params, r"lack layers\.1\.attention"),
        (model_for(SMALL, dtype=np.float32).params, "float32, but the model is float64"),
        ({}, "dict"),
    ],
)
def test_wrong_gradients_to_add_to_are_an_error_with_the_facts(grads, fact):
    model = model_for(SMALL)
    fwd = model.forward(*batch(SMALL), some_memory(model))
    with pytest.raises(NpxlError, match=fact) as error:
        model.backward(fwd, grads=grads)
    assert "model.params.zeros_like()" in str(error.value)


def test_parameters_of_another_configuration_are_refused():
    other = dataclasses.replace(SMALL, d_head=2)
    with pytest.raises(NpxlError, match=r"attention\.u has shape \(2, 3\).*needs \(2, 2\)"):
        TransformerXL(other, params=TransformerXL(SMALL).params)
    with pytest.raises(NpxlError, match=r"params is of type dict.*Params"):
        TransformerXL(SMALL, params=dict(TransformerXL(SMALL).params))


@pytest.mark.parametrize("seed", [-1, 1.0, None, "0", True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(NpxlError, match=f"seed is {seed!r}.*whole number of at least 0"):
        TransformerXL(SMALL, seed=seed)


@pytest.mark.parametrize("batch_size", [-1, 0, 1.0, None])
@pytest.mark.parametrize("method", ["init_memory", "reader"])
def test_a_batch_has_streams(method, batch_size):
    with pytest.raises(NpxlError, match=f"batch_size is {batch_size}.*at least 1"):
        getattr(TransformerXL(SMALL), method)(batch_size)


@pytest.mark.parametrize(
    ("flat", "fact"),
    [
        ([1, 2], "list"),
        (np.zeros(3), r"\(3,\).*\(2,\)"),
        (np.zeros((2, 1)), r"\(2, 1\)"),
        (np.zeros(4)[::2], "contiguous"),  # its tensors would be copies, not views
    ],
)
def test_parameters_need_one_contiguous_vector(flat, fact):
    with pytest.raises(NpxlError, match=f"flat is .*{fact}"):
        Params({"w": (1, 2)}, flat)


@pytest.mark.parametrize("dtype", [np.float16, np.int32, np.complex128])
def test_a_wrong_precision_is_an_error_with_the_facts(dtype):
    with pytest.raises(NpxlError, match=f"dtype is {np.dtype(dtype)}.*float32 or float64"):
        TransformerXL(SMALL, dtype=dtype)


def test_the_largest_preset_is_described_without_being_allocated():
    shapes = TransformerXL.parameter_shapes(ModelConfig(vocab_size=10**9, n_layer=10**3))
    assert shapes["embedding.weight"] == (10**9, 128)


def test_embeddings_of_symbols_that_do_not_exist_are_refused():
    model = model_for(ModelConfig(vocab_size=5, n_layer=1, d_model=4))
    for tokens_ in ([[-1]], [[5]]):
        with pytest.raises(NpxlError, match="0 to 4"):
            model.embed(np.array(tokens_))
