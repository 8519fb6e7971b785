"""Section numerics of an audit: right for every form of model, and wrong where one is broken."""

import itertools
import math
from dataclasses import replace

import numba
import numpy as np
import pytest
from audited import LSTM, draw_all, every_config, rows_of, wrong_rows

import npxl
import npxl.layers.attention as attention_module
import npxl.layers.content_attention as content_module
import npxl.layers.feed_forward as feed_forward_module
import npxl.layers.layer_norm as layer_norm_module
import npxl.layers.lstm as lstm_module
import npxl.layers.softmax as softmax_module
import npxl.models.lstm as lstm_model_module
import npxl.models.one_token as one_token_module
import npxl.models.segment_model as ends_module
import npxl.models.transformer_xl as model_module
import npxl.training.optimizers as optimizers_module
from npxl import TransformerXL
from npxl.audit.sections import numerics, precision
from npxl.audit.sections.numerics import NUMERICS
from npxl.audit.twins import beside_their_twins
from npxl.layers.positions import sinusoid
from npxl.models.lstm import LSTMReader
from npxl.models.reading import TransformerXLReader
from npxl.models.segment_model import SegmentModel

compiled = pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled")


@pytest.fixture(autouse=True)
def sooner_done(monkeypatch):
    monkeypatch.setattr(precision, "LONG", 1000)
    monkeypatch.setattr(precision, "_LONG_SEGMENT", 50)
    monkeypatch.setattr(numerics, "_POINTS", 20_001)


@every_config
def test_a_right_model_is_not_accused(options):
    assert wrong_rows(NUMERICS, options) == []


def coarse(x):
    """float32 numbers with as many digits as float16 has."""
    return x.astype(np.float16).astype(x.dtype) if x.dtype == np.float32 else x


def coarse_products(monkeypatch):
    linear = feed_forward_module.linear_forward
    monkeypatch.setattr(feed_forward_module, "linear_forward", lambda *of: coarse(linear(*of)))


def coarse_steps(monkeypatch):
    """An LSTM's hidden states, in the last step of a segment."""
    right = lstm_module.lstm_steps_forward

    def other(gates, w_h_t, hidden, cells, squashed):
        right(gates, w_h_t, hidden, cells, squashed)
        hidden[-1] = coarse(hidden[-1])

    monkeypatch.setattr(lstm_module, "lstm_steps_forward", other)


def worse_and_worse(monkeypatch, model=TransformerXL):
    """An error that grows as the square of the segments that were read."""
    stack_forward, count = model.stack_forward, itertools.count(1)

    def other(self, *arguments):
        hidden, states, cache = stack_forward(self, *arguments)
        if self.dtype == np.float32:
            n = next(count)
            hidden = hidden * np.float32(1 + 1e-7 * n * n)
            states = [state * np.float32(1 + 1e-7 * n * n) for state in states]
        return hidden, states, cache

    monkeypatch.setattr(model, "stack_forward", other)


def an_lstm_that_is_worse_and_worse(monkeypatch):
    worse_and_worse(monkeypatch, npxl.LSTM)


def another_kernel(module, name, output, factor=1 + 1e-3):
    """A compiled kernel that is not what its source says: an array it fills is off."""
    kernel = getattr(module, name)

    def other(*arguments):
        result = kernel(*arguments)
        arguments[output][...] *= factor
        return result

    other.py_func = kernel.py_func
    return lambda monkeypatch: monkeypatch.setattr(module, name, other)


def positions_in_reverse(monkeypatch):
    monkeypatch.setattr(model_module, "sinusoid", lambda *of: sinusoid(*of)[::-1].copy())


def coarse_positions(monkeypatch):
    for module in (model_module, precision):
        monkeypatch.setattr(module, "sinusoid", lambda *of: coarse(sinusoid(*of)))


def a_little_more(owner, name):
    method = getattr(owner, name)
    return lambda monkeypatch: monkeypatch.setattr(owner, name, lambda *of: method(*of) + 1e-3)


def softmax_without_its_largest(monkeypatch):
    """e^a overflows, and so do losses and gradients."""
    adaptive_log_softmax = ends_module.adaptive_log_softmax
    adaptive_softmax_forward = ends_module.adaptive_softmax_forward

    def log_softmax(hidden, clusters):
        log_p = adaptive_log_softmax(hidden, clusters)
        return np.log(np.exp(-log_p)) * -1

    def forward(hidden, targets, clusters):
        nll, cache = adaptive_softmax_forward(hidden, targets, clusters)
        nll = np.log(np.exp(nll)).astype(nll.dtype)
        return nll, cache

    monkeypatch.setattr(ends_module, "adaptive_log_softmax", log_softmax)
    monkeypatch.setattr(ends_module, "adaptive_softmax_forward", forward)


def attention_without_its_largest(monkeypatch):
    for module in (attention_module, content_module):
        attend = module.attend_forward

        def other(*arguments, attend=attend, **options):
            attended, cache = attend(*arguments, **options)
            overflow = np.exp(cache.largest * cache.scale).swapaxes(1, 2)[..., None]
            return attended * (overflow / overflow), cache

        monkeypatch.setattr(module, "attend_forward", other)


def gates_that_overflow(monkeypatch):
    """σ(a) as the quotient of two numbers that have no room."""
    right = lstm_module.lstm_steps_forward

    def other(gates, w_h_t, hidden, cells, squashed):
        overflow = np.exp(np.abs(gates)).max()
        right(gates, w_h_t, hidden, cells, squashed)
        hidden[1:] *= overflow / overflow

    monkeypatch.setattr(lstm_module, "lstm_steps_forward", other)


def another_state(monkeypatch):
    """Of which every number is a little more, in both passes."""
    right = lstm_model_module.lstm_forward

    def other(x, state, *rest):
        return right(x, state + 1e-9, *rest)

    monkeypatch.setattr(lstm_model_module, "lstm_forward", other)


def worse_exp(monkeypatch):
    right = numerics._exp_of_each

    def other(x, y):
        right(x, y)
        y *= 1 + 1e-6

    monkeypatch.setattr(numerics, "_exp_of_each", other)


def exp_of_everything_is_a_number(monkeypatch):
    right = numerics._exp_of_each

    def other(x, y):
        right(x, y)
        np.nan_to_num(y, copy=False)

    monkeypatch.setattr(numerics, "_exp_of_each", other)


def not_a_number_once(monkeypatch):
    """What the second segment returns, but not its memory."""
    forward, log_probs = SegmentModel.forward, SegmentModel.log_probs
    forwards, reads = itertools.count(), itertools.count()

    def other_forward(self, *arguments):
        fwd = forward(self, *arguments)
        return replace(fwd, nll=fwd.nll * np.nan) if next(forwards) == 1 else fwd

    def other_log_probs(self, *arguments):
        log_p, memory = log_probs(self, *arguments)
        return (log_p * np.nan if next(reads) == 1 else log_p), memory

    monkeypatch.setattr(SegmentModel, "forward", other_forward)
    monkeypatch.setattr(SegmentModel, "log_probs", other_log_probs)


def one_gradient_is_not_a_number(monkeypatch):
    """Neither the first tensor's nor the last one's."""
    backward = SegmentModel.backward

    def other(self, *arguments):
        grads = backward(self, *arguments)
        grads[list(grads)[len(grads) // 2]][...] = np.nan
        return grads

    monkeypatch.setattr(SegmentModel, "backward", other)


def nothing_a_number(owner, name):
    method = getattr(owner, name)
    return lambda monkeypatch: monkeypatch.setattr(owner, name, lambda *of: method(*of) * np.nan)


BROKEN = [
    ("precision", "layer 1", coarse_products),
    ("precision", "layer 3", worse_and_worse),
    ("precision", "log-probabilities", coarse_products),
    ("precision", "gradients", coarse_products),
    ("reference", "losses", positions_in_reverse),
    ("reference", "log-probabilities", positions_in_reverse),
    ("reference", "memory", positions_in_reverse),
    ("reference", "losses", not_a_number_once),
    ("reference", "log-probabilities", not_a_number_once),
    ("precision", "gradients", one_gradient_is_not_a_number),
    ("long-memory", "by the reader", nothing_a_number(TransformerXLReader, "log_probs")),
    ("long-memory", "log-probabilities", coarse_positions),
    ("long-memory", "by the reader", a_little_more(TransformerXLReader, "log_probs")),
    ("long-memory", "sum of probabilities", a_little_more(ends_module, "adaptive_log_softmax")),
    ("positions", "sinusoids", coarse_positions),
    ("extreme", "logits in float64", softmax_without_its_largest),
    ("extreme", "logits in float32", softmax_without_its_largest),
    ("extreme", "scores in float64", attention_without_its_largest),
    ("extreme", "scores in float32", attention_without_its_largest),
    ("exp", "float32", worse_exp),
    ("exp", "float64", worse_exp),
    ("exp", "beyond its range", exp_of_everything_is_a_number),
]


BROKEN_LSTM = [
    ("precision", "layer 1", coarse_steps),
    ("precision", "layer 3", an_lstm_that_is_worse_and_worse),
    ("precision", "log-probabilities", coarse_steps),
    ("precision", "gradients", one_gradient_is_not_a_number),
    ("reference", "losses", another_state),
    ("reference", "log-probabilities", another_state),
    ("reference", "memory", another_state),
    ("long-memory", "log-probabilities", an_lstm_that_is_worse_and_worse),
    ("long-memory", "by the reader", a_little_more(LSTMReader, "log_probs")),
    ("long-memory", "sum of probabilities", a_little_more(ends_module, "adaptive_log_softmax")),
    ("extreme", "logits in float64", softmax_without_its_largest),
    ("extreme", "logits in float32", softmax_without_its_largest),
    ("extreme", "gates in float64", gates_that_overflow),
    ("extreme", "gates in float32", gates_that_overflow),
    ("exp", "float32", worse_exp),
    ("exp", "float64", worse_exp),
    ("exp", "beyond its range", exp_of_everything_is_a_number),
]
OF_KINDS = [({}, BROKEN), (LSTM, BROKEN_LSTM)]


@pytest.mark.parametrize(
    ("options", "check", "row", "break_it"),
    [(options, *each) for options, broken in OF_KINDS for each in broken],
)
def test_a_row_is_wrong_where_what_it_names_is_broken(monkeypatch, options, check, row, break_it):
    break_it(monkeypatch)
    assert not rows_of(NUMERICS, check, options)[row].passed


@compiled
@pytest.mark.parametrize(
    ("module", "name", "output"),
    [
        (lstm_module, "lstm_steps_forward", 2),
        (lstm_module, "lstm_steps_backward", -1),
        (layer_norm_module, "layer_norm_rows_forward", 4),
        (layer_norm_module, "layer_norm_rows_backward", 5),
        (attention_module, "relative_attention_heads_forward", 10),
        (attention_module, "relative_attention_heads_backward", -1),
        (softmax_module, "cross_entropy_forward", 0),
        (one_token_module, "add_product", 0),
        (one_token_module, "normalize_one", 4),
        (optimizers_module, "adam_update", 0),
    ],
)
def test_a_kernel_that_is_not_what_its_source_says(monkeypatch, module, name, output):
    another_kernel(module, name, output)(monkeypatch)
    options = LSTM if module is lstm_module else dict(pre_lnorm=name == "normalize_one")
    rows = rows_of(NUMERICS, "compiled", options)
    assert [row for row, result in rows.items() if not result.passed] == [name]
    assert rows[name].figures["float32"].value > 1e-5


@compiled
def test_a_kernel_that_writes_what_is_not_a_number(monkeypatch):
    another_kernel(optimizers_module, "adam_update", 0, math.nan)(monkeypatch)
    assert not rows_of(NUMERICS, "compiled")["adam_update"].passed


@pytest.mark.parametrize(("options", "broken"), OF_KINDS)
def test_every_row_is_broken_by_something(options, broken):
    named = {
        (check.name, row)
        for check in NUMERICS.checks
        if check.name != "compiled"
        for row, result in rows_of(NUMERICS, check.name, options).items()
        if result.applies and not row.startswith("layer")
    }
    assert named <= {(check, row) for check, row, _ in broken}


@pytest.mark.parametrize(
    ("check", "figure"), [("precision", "late/early"), ("long-memory", "exponent")]
)
def test_an_error_that_grows_is_seen_to_grow(monkeypatch, check, figure):
    def figures():
        rows = rows_of(NUMERICS, check).values()
        return [row.figures[figure] for row in rows if figure in row.figures]

    assert all(each.holds for each in figures())
    worse_and_worse(monkeypatch)
    assert not any(each.holds for each in figures())


@compiled
def test_kernels_are_their_own_again_afterwards():
    before = layer_norm_module.layer_norm_rows_forward

    def stops():
        with beside_their_twins() as found:
            assert layer_norm_module.layer_norm_rows_forward is not before
            assert {"relative_attention_heads_backward", "adam_update", "drop"} <= set(found)
            assert all(twins.calls == 0 for twins in found.values())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stops()
    assert layer_norm_module.layer_norm_rows_forward is before


def test_without_a_compiler_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    (row,) = rows_of(NUMERICS, "compiled").values()
    assert not row.applies


def test_its_pictures_can_be_drawn():
    pictures = draw_all(NUMERICS, ["precision", "long-memory", "exp"])
    assert [picture.title.split(",")[0] for picture in pictures] == [
        "float32 against float64",
        "float32 against float64 over 1",
        "The relative error of exp in float32",
    ]
    assert math.prod(pictures[0].size) > 0
    assert not list(NUMERICS.pictures({}))
