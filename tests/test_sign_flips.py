"""One sign flipped anywhere in a backward pass is found, and the tensors it spoils are named."""

import ast
import copy
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
from dataclasses import replace
from fnmatch import fnmatch
from unittest import mock

import numpy as np
import pytest
from bounds import within_bounds
from support import model_for, tokens
from test_reading_kernels import EDGES, EDGES_OF_ONE, check_one, check_packed

import npxl.kernels
import npxl.layers
from npxl import LSTMConfig, MaskKey, ModelConfig, NpxlError
from npxl.audit import audit, scaling
from npxl.audit.gradients import gradcheck
from npxl.audit.sections import gradients
from npxl.audit.twins import plain
from npxl.kernels import vectors
from npxl.kernels.one_token import attention_of_one
from npxl.kernels.relative_attention import (
    packed_attention_heads_forward,
    relative_attention_heads_backward,
)
from npxl.layers import attention
from npxl.layers.content_attention import ContentWeights
from npxl.layers.dropout import dropout_cache
from npxl.layers.lstm import LSTMWeights
from npxl.layers.shaw_attention import ShawWeights
from npxl.models import decoder_layer, lstm, segment_model, transformer_xl
from npxl.testing.strategies import PLACES

# Nothing is shared, so that a parameter's gradient comes from one place.
CONFIG = ModelConfig(
    vocab_size=7, cutoffs=(3, 5), div_val=2, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=4,
    mem_len=3, attn_window=3, untie_r=True, tie_weight=False, dropout=0.2, dropatt=0.2,
)  # fmt: skip
LSTM_CONFIG = LSTMConfig(
    vocab_size=7, cutoffs=(3, 5), div_val=2, n_layer=2, d_model=6, tie_weight=False, dropout=0.2
)
MODULES = (decoder_layer, transformer_xl, lstm, segment_model)


def check(config):
    model = model_for(config)
    shape = (2, 3)
    before, inputs, targets = (tokens(shape, seed, config.vocab_size) for seed in (2, 5, 1))
    assert all(set(text.flat) & set(c) for text in (inputs, targets) for c in config.clusters)
    _, memory = model.log_probs(before, model.init_memory(2))
    return gradcheck(model, inputs, targets, memory, MaskKey(4), entries=2)


# What a layer adds to a parameter's gradient, or returns, with the other sign


def flipped(function, part):
    """`function` with the sign of one part of its result flipped: of "return", or what it adds."""
    signature = inspect.signature(function)
    argument, *fields = part.split(".")

    def wrong(*arguments, **options):
        if part == "return":
            return -function(*arguments, **options)
        grad = signature.bind(*arguments, **options).arguments[argument]
        for field in fields:
            grad = grad[int(field)] if field.isdigit() else getattr(grad, field)
        before = grad.copy()
        result = function(*arguments, **options)
        grad[...] = 2 * before - grad
        return result

    return wrong


each_flip = pytest.mark.parametrize(
    ("function", "part", "wrong"),
    [
        *(
            ("relative_attention_backward", f"grads.{name}", f"layers.?.attention.{name}")
            for name in ("w_q", "w_k", "w_v", "w_r", "w_o", "u", "v")
        ),
        *(
            ("shaw_attention_backward", f"grads.{name}", f"layers.?.attention.{name}")
            for name in ShawWeights._fields
        ),
        *(
            ("content_attention_backward", f"grads.{name}", f"layers.?.attention.{name}")
            for name in ContentWeights._fields
        ),
        ("add_learned_backward", "d_table", "layers.?.position"),
        *(("lstm_backward", f"grads.{name}", f"layers.?.{name}") for name in LSTMWeights._fields),
        ("lstm_backward", "return", "layers.0.*"),  # twice, so that the input is right again
        *(
            ("feed_forward_backward", f"grads.{name}", f"layers.?.feed_forward.{name}")
            for name in ("w_1", "b_1", "w_2", "b_2")
        ),
        ("layer_norm_backward", "d_gain", "layers.?.*_norm.gain"),
        ("layer_norm_backward", "d_bias", "layers.?.*_norm.bias"),
        ("adaptive_softmax_backward", "grads.0.outputs.0.weight", "softmax.0.weight"),
        ("adaptive_softmax_backward", "grads.1.outputs.0.weight", "softmax.1.weight"),
        ("adaptive_softmax_backward", "grads.2.projection", "softmax.2.projection"),
        ("adaptive_softmax_backward", "grads.1.outputs.0.bias", "softmax.bias"),
        ("adaptive_softmax_backward", "grads.0.outputs.1.weight", "softmax.cluster_weight"),
        ("adaptive_softmax_backward", "grads.0.outputs.1.bias", "softmax.cluster_bias"),
        *(
            ("embedding_backward", f"grads.{i}.{name}", f"embedding.{i}.{tensor}")
            for i in range(3)
            for name, tensor in (("table", "weight"), ("projection", "projection"))
        ),
        # All that lies below, in the order of the forward pass.
        ("adaptive_softmax_backward", "return", "input embedding.* layers.*"),
        ("feed_forward_backward", "return", "input embedding.* layers.0.* layers.1.attention*"),
        ("relative_attention_backward", "return", "input embedding.* layers.0.*"),
        # Twice a layer, or at both ends: below the second the sign is right again.
        ("layer_norm_backward", "return", "layers.?.feed_forward.* layers.?.attention_norm.*"),
        ("dropout_backward", "return", "layers.*"),
    ],
)


def flip(monkeypatch, function, part):
    """Flips it; returns a configuration that uses it."""
    module = next(each for each in MODULES if hasattr(each, function))
    monkeypatch.setattr(module, function, flipped(getattr(module, function), part))
    kinds = {"shaw": "shaw", "content": "vaswani", "add": "al-rfou"}
    kind = kinds.get(function.partition("_")[0], "dai")
    if module is lstm:
        return LSTM_CONFIG
    return replace(CONFIG, attn_type=kind, clamp_len=2, untie_r=kind == "dai")


def named(patterns, names):
    return {name for name in names if any(fnmatch(name, each) for each in patterns.split())}


@each_flip
def test_the_tensors_that_a_wrong_sign_spoils_are_named(monkeypatch, function, part, wrong):
    report = check(flip(monkeypatch, function, part))
    names = [check.name for check in report.tensors]
    assert {check.name for check in report.failures} == named(wrong, names)


@each_flip
def test_the_audit_names_them_too(monkeypatch, function, part, wrong):
    for name, size in scaling._LARGEST.items():
        monkeypatch.setitem(scaling._LARGER, name, size)  # sooner done
    monkeypatch.setattr(gradients, "_LARGER_TGT_LEN", 3)
    report = audit(flip(monkeypatch, function, part), only=["gradients/larger"])
    assert not report.passed
    (outcome,) = report.outcomes
    names = [result.name for result in outcome.results]
    assert {result.name for result in outcome.failures} - {"all"} == named(wrong, names)


# Every + and - of the source of every backward function, exchanged

BACKWARD = "backward|scatter_add"  # the latter is the kernel of embedding_backward
ATTENTION = relative_attention_heads_backward  # has a test of its own below


def signs():
    """(module, function, number of the sign in it, expression) for all signs of backward passes."""
    modules = list(MODULES) + [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in (npxl.layers, npxl.kernels)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    for module in modules:
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if (
                isinstance(function, ast.FunctionDef)
                and re.search(BACKWARD, function.name)
                and function.name != ATTENTION.__name__
            ):
                for n, node in enumerate(signs_of(function)):
                    yield module, function, n, ast.unparse(node)


def signs_of(function):
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.AugAssign | ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    ]


def exchanged(module, function, n):
    """The function whose source is `function`, with its n-th sign exchanged."""
    function = copy.deepcopy(function)
    function.decorator_list = []  # not compiled: nothing is cached
    sign = signs_of(function)[n]
    sign.op = ast.Sub() if isinstance(sign.op, ast.Add) else ast.Add()
    namespace = dict(vars(module))
    exec(compile(ast.Module([function], []), module.__file__, "exec"), namespace)
    return namespace[function.name]


def each(signs):
    return pytest.mark.parametrize(
        ("module", "function", "n"),
        [
            pytest.param(module, function, n, id=f"{function.name}: {expression}")
            for module, function, n, expression in signs
        ],
    )


@each(signs())
def test_every_sign_matters(monkeypatch, module, function, n):
    wrong = exchanged(module, function, n)
    models = segment_model.SegmentModel, transformer_xl.TransformerXL, lstm.LSTM
    owner = [model for model in models if model.__module__ == module.__name__]
    if owner and function.name in vars(owner[0]):
        monkeypatch.setattr(owner[0], function.name, wrong)
    else:
        right = getattr(module, function.name)
        for name, each in list(sys.modules.items()):
            if name.startswith("npxl.") and vars(each).get(function.name) is right:
                monkeypatch.setattr(each, function.name, wrong)
    one = replace(CONFIG, n_layer=1)
    shaw = replace(one, attn_type="shaw", clamp_len=1, untie_r=False)
    places = [replace(shaw, attn_type=attn_type) for attn_type in PLACES]
    configs = [one, replace(one, pre_lnorm=True), shaw, replace(shaw, clamp_len=9), *places]
    if "lstm" in module.__name__:
        configs = [replace(LSTM_CONFIG, n_layer=1)]
    try:
        assert not all(check(config).passed for config in configs)
    except NpxlError:
        raise
    except (IndexError, ValueError):
        pass  # a sign in an index or a shape: the arrays do not fit any more


# Those of the attention kernel, most of which are parts of indices.  They matter from the second
# tile or block on, in segments that take a gradient check too long: the truth is what it computed


def kernels_called_by(kernel):
    """By name: the kernel and those that it calls, at any depth."""
    function = kernel.py_func
    found = {function.__name__: kernel}
    for name in function.__code__.co_names:
        called = function.__globals__.get(name)
        if hasattr(called, "py_func"):
            found.update(kernels_called_by(called))
    return found


# Exchanged, these ask for more room than is needed.
WASTEFUL = [
    ("round_up", "n + size - 1"),
    ("pack_transposed", "heads[1] - heads[0]"),
    # Two keys more than a block's or a tile's queries see, in cells that are not read or are zero.
    ("_score_positions", "end - 1"),
    ("_score_positions", "min(first + TILE_ROWS, n_queries) - 1"),
    ("_multiply_by_key", "end - 1"),
    ("_multiply_by_key", "min(first + TILE_ROWS, n_queries) - 1"),
    ("_last_column", "extent.last + extent.n_queries - 1"),
    ("_seen_by_some", "end - 1"),
    ("_add_by_distance", "end - 1"),
    ("_add_by_distance", "min(first + TILE_ROWS, n_queries) - 1"),
    # More cells than share a distance, which are overwritten afterwards or not read.
    ("_score_far_positions", "extent.n_keys - extent.n_distances - (n_queries - 1 - i)"),
    ("_score_far_positions", "extent.n_keys - extent.n_distances"),
    ("_score_far_positions", "at + stop - start"),
    # The last scores twice, of which one is the largest all the same; room behind what is found.
    ("row_maximum", "row.size - LANES + 1"),
    ("_weighted_sum", "padded - padded % (8 * LANES)"),
    ("_weighted_sum", "padded - padded % (4 * LANES)"),
    # Of dropout, which reading does not have.
    ("_attend", "(h * n_queries + i) * n_keys + start"),
    ("_attend", "h * n_queries + i"),
    ("_attend", "number + j"),
]


# Of distances that share a column, of keys that are met in parts and of sums of exponentials, which
# the backward pass does not have.
FAR = (
    "_score_far_positions",
    "_first_column(end - 1, extent) - shared",
    "_last_column(block, extent) - shared",
    "_last_column",
    "(first - block) * row_length + _MARGIN + j - extent.first",
    "total += row[j]",
)


def signs_of_kernels(*kernels):
    """Of those that they call as well, but for the harmless."""
    called = {}
    for kernel in kernels:
        called.update(kernels_called_by(kernel))
    for kernel in called.values():
        function = ast.parse(inspect.getsource(kernel.py_func)).body[0]
        for n, node in enumerate(signs_of(function)):
            expression = ast.unparse(node)
            if (function.name, expression) not in WASTEFUL:
                yield sys.modules[kernel.py_func.__module__], function, n, expression


def signs_of_attention():
    for sign in signs_of_kernels(ATTENTION):
        if sign[1].name not in FAR and sign[3] not in FAR:
            yield sign


def attention_gradients(n_queries, n_memory, width, value_width, window, dropatt, heads):
    """What `attend_backward` returns and adds, for two streams and some of three heads."""
    draw = np.random.default_rng(1)
    n_keys = n_memory + n_queries
    query, d_attended = (draw.standard_normal((2, n_queries, 3, d)) for d in (width, value_width))
    key, value = (draw.standard_normal((2, n_keys, 3, d)) for d in (width, value_width))
    relative, u, v = (draw.standard_normal((*n, 3, width)) for n in ((n_keys,), (), ()))
    dropout = dropout_cache(dropatt, MaskKey(4, first_stream=3).site("attention_probabilities"))
    _, cache = attention.attend_forward(query, key, value, relative, u, v, window, dropout)
    d_u, d_v = np.ones_like(u), np.ones_like(v)
    with mock.patch.object(attention, "spread", lambda task, n, cost: task(heads)):
        gradients = attention.attend_backward(d_attended, cache, u, v, d_u, d_v)
    return [gradient[..., heads.start : heads.stop, :] for gradient in (*gradients, d_u, d_v)]


C = vectors.TILE_COLUMNS
N = 2 * vectors.TILE_ROWS + 3
# With blocks of two tiles, all but the last of these have several, and end with a part of a tile.
# There are windows that begin within tiles and wide ones, and heads that take one tile or two.
CASES = [
    (N, 3 * C - 2, 3, 5, C - 4, 0.0, range(1, 2)),
    (N, C - 7, C + 1, C + 2, 6, 0.3, range(1, 2)),
    (C + 3, 4, 3, 5, 999, 0.0, range(1, 2)),
    (2, 1, 3, 2, 2, 0.0, range(1, 3)),
]
SMALL = {"_BLOCK": 2 * vectors.TILE_ROWS, "_KEYS": C}


@pytest.fixture(scope="module")
def right():
    return [attention_gradients(*case) for case in CASES]


def is_right(right):
    """Whether attention has the gradients that it had; stops at the first case where it has not."""
    return all(
        all(np.allclose(*pair, rtol=1e-9, atol=1e-9) for pair in zip(now, before, strict=True))
        for now, before in zip((attention_gradients(*case) for case in CASES), right, strict=True)
    )


def test_the_attention_kernel_as_plain_python_is_right(monkeypatch, right):
    monkeypatch.setattr(vectors, "_in_memory", within_bounds)
    monkeypatch.setattr(attention, ATTENTION.__name__, plain(ATTENTION, **SMALL))
    assert is_right(right)


@each(signs_of_attention())
def test_every_sign_of_the_attention_kernel_matters(monkeypatch, right, module, function, n):
    wrong = exchanged(module, function, n)
    wrong.py_func = wrong
    kernel = wrong if function.name == ATTENTION.__name__ else ATTENTION
    kernel = plain(kernel, **SMALL, **{function.name: wrong})
    monkeypatch.setattr(attention, ATTENTION.__name__, kernel)
    monkeypatch.setattr(vectors, "_in_memory", within_bounds)
    try:
        with np.errstate(all="ignore"):
            assert not is_right(right)
    except (IndexError, ValueError):
        pass  # outside of an array


# And those of a reader's kernels


READING = {
    packed_attention_heads_forward: (check_packed, EDGES),
    attention_of_one: (check_one, EDGES_OF_ONE),
}
"""Each with its check and the cases, of which one has to notice."""


def signs_of_reading():
    trained = kernels_called_by(ATTENTION)
    for sign in signs_of_kernels(*READING):
        if sign[1].name not in trained or sign[1].name in FAR or sign[3] in FAR:
            yield sign


@pytest.mark.parametrize("kernel", READING, ids=lambda kernel: kernel.__name__)
def test_a_readers_kernels_as_plain_python_are_right(monkeypatch, kernel):
    monkeypatch.setattr(vectors, "_in_memory", within_bounds)
    check, cases = READING[kernel]
    for memory in cases:
        check([plain(kernel, **SMALL)], memory, np.float64, 1)


@each(signs_of_reading())
def test_every_sign_of_a_readers_kernels_matters(monkeypatch, module, function, n):
    wrong = exchanged(module, function, n)
    wrong.py_func = wrong
    monkeypatch.setattr(vectors, "_in_memory", within_bounds)
    for kernel, (check, cases) in READING.items():
        if function.name not in kernels_called_by(kernel):
            continue
        root = wrong if function.name == kernel.__name__ else kernel
        spoiled = plain(root, **SMALL, **{function.name: wrong})
        for memory, largest in itertools.product(cases, (1, 1e4)):
            try:
                with np.errstate(all="ignore"):
                    check([spoiled], memory, np.float64, 1, largest)
            except (AssertionError, IndexError, ValueError):
                return
    pytest.fail("nothing noticed")
