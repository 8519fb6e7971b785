"""One sign flipped anywhere in a backward pass is found, and the tensors it spoils are named."""

import ast
import copy
import importlib
import inspect
import pkgutil
import re
import sys
from dataclasses import replace
from fnmatch import fnmatch

import pytest
from support import model_for, tokens

import npxl.kernels
import npxl.layers
from npxl import MaskKey, ModelConfig, NpxlError
from npxl.audit.gradients import gradcheck
from npxl.models import decoder_layer, transformer_xl

# Nothing is shared, so that a parameter's gradient comes from one place.
CONFIG = ModelConfig(
    vocab_size=5, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=4, mem_len=3, attn_window=3,
    untie_r=True, tie_weight=False, dropout=0.2, dropatt=0.2,
)  # fmt: skip


def check(config):
    model = model_for(config)
    shape = (2, 3)
    _, memory = model.log_probs(tokens(shape, 1), model.init_memory(2))
    return gradcheck(model, tokens(shape, 2), tokens(shape, 3), memory, MaskKey(4), entries=2)


# What a layer adds to a parameter's gradient, or returns, with the other sign


def flipped(function, part):
    """`function` with the sign of one part of its result flipped: of "return", or what it adds."""
    signature = inspect.signature(function)
    argument, _, field = part.partition(".")

    def wrong(*arguments, **options):
        if part == "return":
            return -function(*arguments, **options)
        grad = signature.bind(*arguments, **options).arguments[argument]
        grad = getattr(grad, field) if field else grad
        before = grad.copy()
        result = function(*arguments, **options)
        grad[...] = 2 * before - grad
        return result

    return wrong


@pytest.mark.parametrize(
    ("function", "part", "wrong"),
    [
        *(
            ("relative_attention_backward", f"grads.{name}", f"layers.?.attention.{name}")
            for name in ("w_q", "w_k", "w_v", "w_r", "w_o", "u", "v")
        ),
        *(
            ("feed_forward_backward", f"grads.{name}", f"layers.?.feed_forward.{name}")
            for name in ("w_1", "b_1", "w_2", "b_2")
        ),
        ("layer_norm_backward", "d_gain", "layers.?.*_norm.gain"),
        ("layer_norm_backward", "d_bias", "layers.?.*_norm.bias"),
        ("softmax_backward", "d_weight", "softmax.weight"),
        ("softmax_backward", "d_bias", "softmax.bias"),
        ("embedding_backward", "d_table", "embedding.weight"),
        # All that lies below, in the order of the forward pass.
        ("softmax_backward", "return", "input embedding.* layers.*"),
        ("feed_forward_backward", "return", "input embedding.* layers.0.* layers.1.attention*"),
        ("relative_attention_backward", "return", "input embedding.* layers.0.*"),
        # Twice a layer, or at both ends: below the second the sign is right again.
        ("layer_norm_backward", "return", "layers.?.feed_forward.* layers.?.attention_norm.*"),
        ("dropout_backward", "return", "layers.*"),
    ],
)
def test_the_tensors_that_a_wrong_sign_spoils_are_named(monkeypatch, function, part, wrong):
    module = decoder_layer if hasattr(decoder_layer, function) else transformer_xl
    monkeypatch.setattr(module, function, flipped(getattr(module, function), part))
    report = check(CONFIG)
    names = [check.name for check in report.tensors]
    expected = {name for name in names if any(fnmatch(name, each) for each in wrong.split())}
    assert {check.name for check in report.failures} == expected


# Every + and - of the source of every backward function, exchanged

BACKWARD = "backward|scatter_add"  # the latter is the kernel of embedding_backward


def signs():
    """(module, function, number of the sign in it, expression) for all signs of backward passes."""
    modules = [transformer_xl, decoder_layer] + [
        importlib.import_module(f"{package.__name__}.{module.name}")
        for package in (npxl.layers, npxl.kernels)
        for module in pkgutil.iter_modules(package.__path__)
    ]
    for module in modules:
        for function in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(function, ast.FunctionDef) and re.search(BACKWARD, function.name):
                for n, node in enumerate(signs_of(function)):
                    yield module, function, n, ast.unparse(node)


def signs_of(function):
    return [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.AugAssign | ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)
    ]


@pytest.mark.parametrize(
    ("module", "function", "n"),
    [
        pytest.param(module, function, n, id=f"{function.name}: {expression}")
        for module, function, n, expression in signs()
    ],
)
def test_every_sign_matters(monkeypatch, module, function, n):
    function = copy.deepcopy(function)
    function.decorator_list = []  # not compiled: nothing is cached
    sign = signs_of(function)[n]
    sign.op = ast.Sub() if isinstance(sign.op, ast.Add) else ast.Add()
    namespace = dict(vars(module))
    exec(compile(ast.Module([function], []), module.__file__, "exec"), namespace)
    wrong = namespace[function.name]
    if hasattr(transformer_xl.TransformerXL, function.name):
        monkeypatch.setattr(transformer_xl.TransformerXL, function.name, wrong)
    else:
        right = getattr(module, function.name)
        for name, each in list(sys.modules.items()):
            if name.startswith("npxl.") and vars(each).get(function.name) is right:
                monkeypatch.setattr(each, function.name, wrong)
    try:
        reports = [check(replace(CONFIG, n_layer=1, pre_lnorm=value)) for value in (False, True)]
    except NpxlError:
        raise
    except (IndexError, ValueError):
        return  # a sign in an index or a shape: the arrays do not fit any more
    assert not all(report.passed for report in reports)
