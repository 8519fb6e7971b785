"""Section recurrence of an audit: right for every form of model, and wrong where one is broken."""

import itertools

import numpy as np
import pytest
from audited import LSTM, draw_all, every_config, rows_of, wrong_rows

import npxl
import npxl.models.transformer_xl as model_module
from npxl import Memory, ModelConfig, TransformerXL
from npxl.audit.reach import furthest, measured_reach, predicted_reach
from npxl.audit.sections.recurrence import RECURRENCE
from npxl.inference import evaluation
from npxl.layers.positions import sinusoid
from npxl.models.lstm import LSTMReader
from npxl.models.reading import TransformerXLReader
from npxl.models.segment_model import SegmentModel


@every_config
def test_a_right_model_is_not_accused(options):
    assert wrong_rows(RECURRENCE, options) == []


def after(function, change):
    """`function`, and what `change(result, *arguments)` makes of its result."""

    def changed(*arguments, **options):
        return change(function(*arguments, **options), *arguments)

    return changed


def kept(monkeypatch, change):
    """Memory that keeps another number of positions than mem_len, or leaves out another number."""
    updated = Memory.updated

    def other(self, hidden, mem_len, ext_len=0):
        return updated(self, hidden, *change(mem_len, ext_len))

    monkeypatch.setattr(Memory, "updated", other)


def one_less(monkeypatch):
    kept(monkeypatch, lambda mem_len, ext_len: (mem_len - 1, ext_len))


def one_more(monkeypatch):
    kept(monkeypatch, lambda mem_len, ext_len: (mem_len + 1, ext_len))


def nothing_read_again(monkeypatch):
    kept(monkeypatch, lambda mem_len, ext_len: (mem_len, 0))


def window(change):
    """Windows of another width than W."""

    def other(self, n_keys):
        return n_keys if self.attn_window is None else change(self.attn_window, self)

    return lambda monkeypatch: monkeypatch.setattr(ModelConfig, "window", other)


narrow = window(lambda width, config: min(width, config.mem_len + 1))


def no_places(monkeypatch):
    monkeypatch.setattr(model_module, "add_sinusoids", lambda h, memory, *_: (h, memory))


def places_of_a_stream(monkeypatch):
    """Positions that depend on how much was read before, not on distances alone."""
    count = itertools.count()
    other = after(TransformerXL._positions, lambda r, *of: r * (1 + 1e-3 * next(count)))
    monkeypatch.setattr(TransformerXL, "_positions", other)


def clamp(change):
    """Distances clamped somewhere else."""

    def other(n_keys, d_model, clamp_len=None, dtype=np.float64):
        return sinusoid(n_keys, d_model, None if clamp_len is None else change(clamp_len), dtype)

    return lambda monkeypatch: monkeypatch.setattr(model_module, "sinusoid", other)


early, never = clamp(lambda clamp_len: max(0, clamp_len - 1)), clamp(lambda clamp_len: None)


def scores(change, owner=SegmentModel, name="log_probs"):
    """What reads returns something else."""
    other = after(getattr(owner, name), change)
    return lambda monkeypatch: monkeypatch.setattr(owner, name, other)


def _of_the_next(result, model, inputs, memory):
    log_p, after_it = result
    log_p[:, :-1] += 1e-9 * inputs[:, 1:, None]
    return log_p, after_it


def _of_the_others(result, model, inputs, memory):
    log_p, after_it = result
    return log_p + 1e-6 * inputs.mean(0)[:, None], after_it


def _of_the_call(result, model, inputs, memory):
    log_p, after_it = result
    model.config.__dict__["calls"] = calls = model.config.__dict__.get("calls", 0) + 1
    return log_p + 1e-6 * calls, after_it


def begins_with_zeros(monkeypatch):
    def other(self, batch_size):
        shape = (self.config.n_layer, batch_size, self.config.mem_len, self.config.d_model)
        return Memory(np.zeros(shape, self.dtype))

    monkeypatch.setattr(TransformerXL, "init_memory", other)


def alone_it_forgets(monkeypatch):
    log_probs = SegmentModel.log_probs

    def other(self, inputs, memory):
        if inputs.shape[1] == 1:
            memory = self.init_memory(len(inputs))
        return log_probs(self, inputs, memory)

    monkeypatch.setattr(SegmentModel, "log_probs", other)


def selected_in_reverse(monkeypatch):
    select = Memory.select
    monkeypatch.setattr(Memory, "select", lambda self, rows: select(self, rows[::-1]))


def too_short_a_warm_up(monkeypatch):
    right = evaluation.warm_up_segments
    monkeypatch.setattr(evaluation, "warm_up_segments", lambda *of: right(*of) - 1)


def no_warm_up(monkeypatch):
    """For an LSTM, which is never warm."""
    monkeypatch.setattr(evaluation, "warm_up_segments", lambda *of: 1)


def state_that_fades(monkeypatch):
    """By a little, wherever a text is cut."""
    right = npxl.LSTM.next_memory
    other = after(right, lambda memory, *of: Memory(memory.states * (1 - 1e-6)))
    monkeypatch.setattr(npxl.LSTM, "next_memory", other)


def state_that_is_forgotten(monkeypatch):
    right = npxl.LSTM.next_memory
    monkeypatch.setattr(
        npxl.LSTM, "next_memory", after(right, lambda memory, *of: Memory(memory.states * 0))
    )


def a_little_more(result, *arguments):
    return result * (1 + 1e-9)


def not_a_number(result, *arguments):
    return result * np.nan


PLACES = dict(attn_type="vaswani")
later_scores = scores(_of_the_next)
of_the_reader = scores(a_little_more, TransformerXLReader)
of_an_lstms_reader = scores(a_little_more, LSTMReader)

BROKEN = [
    ("segmentation", "however a text is cut", one_less, {}),
    ("segmentation", "with tokens that are read again", nothing_read_again, {}),
    ("segmentation", "one key more notices a cut", narrow, {}),
    ("segmentation", "places notice a cut", no_places, PLACES),
    ("reach", "layer 1", window(lambda width, config: width + 1), {}),
    ("reach", "layer 3", window(lambda width, config: width - 1), {}),
    ("reach-as-configured", "layer 2", one_less, {}),
    ("reach-as-configured", "layer 1", one_more, {}),
    ("causality", "as configured", later_scores, {}),
    ("causality", "without memory", later_scores, {}),
    ("causality", "a window of one key", later_scores, {}),
    ("shift", "behind other tokens", places_of_a_stream, {}),
    ("shift", "places notice a shift", no_places, PLACES),
    ("clamp", "no key beyond C", early, {}),
    ("clamp", "one key beyond C", never, {}),
    ("clamp", "what is far is a set", never, {}),
    ("memory", "what is kept", one_less, {}),
    ("memory", "nothing writes into it", scores(_of_the_call), {}),
    ("memory", "how it begins", begins_with_zeros, {}),
    ("incremental", "token by token", alone_it_forgets, {}),
    ("incremental", "what generation says", of_the_reader, {}),
    ("streams", "side by side, in any order", scores(_of_the_others), {}),
    ("streams", "some go on", selected_in_reverse, {}),
    ("reader", "log-probabilities", of_the_reader, {}),
    ("reader", "losses", scores(a_little_more, TransformerXLReader, "score"), {}),
    ("reader", "log-probabilities", scores(not_a_number, TransformerXLReader), {}),
    ("reader", "losses", scores(not_a_number, TransformerXLReader, "score"), {}),
    ("evaluation", "4 streams, 1 workers", too_short_a_warm_up, {}),
    ("evaluation", "3 streams, 2 workers", too_short_a_warm_up, {}),
    ("segmentation", "however a text is cut", state_that_fades, LSTM),
    ("reach-as-configured", "layer 1", state_that_is_forgotten, LSTM),
    ("reach-as-configured", "layer 3", state_that_is_forgotten, LSTM),
    ("causality", "as configured", later_scores, LSTM),
    ("memory", "nothing writes into it", scores(_of_the_call), LSTM),
    ("incremental", "token by token", alone_it_forgets, LSTM),
    ("incremental", "what generation says", of_an_lstms_reader, LSTM),
    ("streams", "side by side, in any order", scores(_of_the_others), LSTM),
    ("streams", "some go on", selected_in_reverse, LSTM),
    ("reader", "log-probabilities", of_an_lstms_reader, LSTM),
    ("reader", "losses", scores(a_little_more, LSTMReader, "score"), LSTM),
    ("evaluation", "4 streams, 1 workers", no_warm_up, LSTM),
    ("evaluation", "3 streams, 2 workers", no_warm_up, LSTM),
]


@pytest.mark.parametrize(("check", "row", "break_it", "options"), BROKEN)
def test_a_row_is_wrong_where_what_it_names_is_broken(monkeypatch, check, row, break_it, options):
    break_it(monkeypatch)
    assert not rows_of(RECURRENCE, check, options)[row].passed


@pytest.mark.parametrize(
    "kinds", [[{}, PLACES], [LSTM]], ids=["transformer-xl", "lstm"]
)  # fmt: skip
def test_every_row_is_broken_by_something(kinds):
    named = {
        (check.name, row)
        for check in RECURRENCE.checks
        for options in kinds
        for row, result in rows_of(RECURRENCE, check.name, options).items()
        if result.applies and not row.startswith("layer")
    }
    assert named <= {(check, row) for check, row, _, options in BROKEN if options in kinds}


def test_what_an_lstm_has_not_is_said():
    nothing = {
        f"{check.name}: {row}"
        for check in RECURRENCE.checks
        for row, result in rows_of(RECURRENCE, check.name, LSTM).items()
        if not result.applies
    }
    assert nothing == {
        "segmentation: with tokens that are read again",
        "segmentation: one key more notices a cut",
        "reach: layer 1",
        "causality: without memory",
        "causality: a window of one key",
        "shift: behind other tokens",
        "clamp: no key beyond C",
        "memory: what is kept",
        "memory: how it begins",
    }


@pytest.mark.parametrize("attn_window", [5, None])
def test_reach_is_a_band_of_the_windows_width_and_otherwise_what_memory_holds(attn_window):
    config = ModelConfig(
        vocab_size=9, n_layer=3, n_head=1, d_model=6, d_head=4, d_inner=8, mem_len=4,
        attn_window=attn_window, init_std=0.4,
    )  # fmt: skip
    model, lengths = TransformerXL(config, dtype=np.float64), [3, 1, 5, 4, 2, 5]
    tokens = np.random.default_rng(0).integers(9, size=20)
    measured, predicted = measured_reach(model, tokens, lengths), predicted_reach(model, lengths)
    np.testing.assert_array_equal(measured, predicted)
    s, t = np.ogrid[:20, :20]
    for n, depends in enumerate(measured, 1):
        band = (t - s >= 0) & (t - s <= n * 4)
        assert (depends == band).all() == (attn_window == 5)
        assert attn_window is None or furthest(depends) == 4 * n


def test_its_pictures_can_be_drawn():
    pictures = draw_all(RECURRENCE, ["reach", "reach-as-configured"])
    assert [picture.title for picture in pictures] == [
        "Reach, with a window",
        "Reach, as configured",
    ]
    assert "distances up to 5, 10, 15" in pictures[0].alternative
    assert "; 0 cells" in pictures[0].alternative
    assert not list(RECURRENCE.pictures({}))
