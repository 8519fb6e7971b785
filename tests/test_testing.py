"""The battery on npxl's models and on toys: the correct are never accused, nothing is vacuous."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from support import lstm_configs, model_for
from toy_models import FadingAverage, Indifferent, WindowedLinear

from npxl import LSTMConfig, ModelConfig
from npxl.invariants import causality, dependence
from npxl.invariants.dependence import oldest_tokens, reach
from npxl.testing import (
    CHECKS,
    Case,
    Inapplicable,
    InvariantBroken,
    NpxlModel,
    NpxlReader,
    NpxlReference,
    Vacuous,
    cases,
    configs,
    parametrize,
    stream_machine,
)

# With two hidden units layer normalisation returns ±1 and forgets what it was given.
widths = st.sampled_from([4, 6, 8])
patient = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])

SMALL = dict(vocab_size=5, n_layer=2, n_head=2, d_model=6, d_head=3, d_inner=5, mem_len=4)


def limited(config):
    """The same with a window that memory can fill, W ≤ M + 1."""
    window = 1 + (config.attn_window or config.mem_len + 1) % (config.mem_len + 1)
    return replace(config, attn_window=window)


everything = configs(d_model=widths)
any_config = everything | everything.map(limited)
vanilla_configs = configs(d_model=widths, mem_len=0, attn_type="al-rfou")


def found(check, implementation, case):
    try:
        return check(implementation, case)
    except (Inapplicable, Vacuous):
        reject()


KINDS = {"transformer-xl": any_config, "lstm": lstm_configs(), "vanilla": vanilla_configs}
NOT_APPLICABLE = {
    "transformer-xl": set(),
    "lstm": {
        "check_memory_update", "check_longer_memory",  # no cache of positions
        "check_empty_start", "check_attention_averages",  # no attention
        "check_shift_covariance",  # no window out of which anything could be
    },
    "vanilla": {
        "check_batch_size_mismatch", "check_memory_is_constant", "check_stop_gradient",
        "check_generation",  # no memory
        "check_empty_start", "check_attention_averages", "check_segmentation_invariance",
        "check_incremental", "check_shift_covariance", "check_longer_memory",  # places
    },
}  # fmt: skip
of_kinds = pytest.mark.parametrize(
    ("kind", "check"),
    [
        pytest.param(kind, check, id=f"{kind}-{name}")
        for kind in KINDS
        for name, check in CHECKS.items()
        if name not in NOT_APPLICABLE[kind]
    ],
)


@of_kinds
@patient
@given(data=st.data(), case=cases(), seed=st.integers(0, 99))
def test_no_model_of_npxl_is_accused(kind, check, data, case, seed):
    config = data.draw(KINDS[kind], label="config")
    finding = found(check, NpxlModel(model_for(config, seed)), case)
    assert finding.check == check.__name__
    assert 0 <= finding.figure <= finding.tolerance
    assert finding.compared > 0


@pytest.mark.parametrize("kind", [kind for kind, names in NOT_APPLICABLE.items() if names])
@given(data=st.data(), case=cases(), seed=st.integers(0, 99))
def test_what_a_kind_has_not_is_said_not_to_be_applicable(kind, data, case, seed):
    model = NpxlModel(model_for(data.draw(KINDS[kind], label="config"), seed))
    for name in NOT_APPLICABLE[kind]:
        with pytest.raises(Inapplicable, match=r"needs the capability|declares|[Ww]ithout|window"):
            CHECKS[name](model, case)


of_readers = [
    pytest.param(kind, adapter, check, id=f"{kind}-{adapter.__name__}-{name}")
    for kind in KINDS
    for adapter, able in (
        (NpxlReader, {"losses", "select"}),
        (NpxlReference, {"losses", "select", "memory", "dropout"}),
    )
    for name, check in CHECKS.items()
    if able.issuperset(check.needs) and name not in NOT_APPLICABLE[kind]
    # In training, a reference shows its dropped embeddings by the memory of a Transformer-XL alone.
    and (name != "check_dropout_scale" or kind == "transformer-xl")
]  # fmt: skip


@pytest.mark.parametrize(("kind", "adapter", "check"), of_readers)
@patient
@given(data=st.data(), case=cases(max_segments=3, max_length=4), seed=st.integers(0, 99))
def test_nor_is_other_code_for_the_same_models(kind, adapter, check, data, case, seed):
    config = data.draw(KINDS[kind], label="config")
    found(check, adapter(model_for(config, seed)), case)


@of_kinds
@patient
@given(data=st.data(), case=cases(), seed=st.integers(0, 99))
def test_nor_is_one_in_single_precision(kind, check, data, case, seed):
    config = data.draw(KINDS[kind], label="config")
    found(check, NpxlModel(model_for(config, seed, np.float32)), case)


@parametrize(
    {"of 3": WindowedLinear(), "of 2": lambda: WindowedLinear(2)},
    expected_failures={"check_stop_gradient": "symbols in memory depend on no parameter"},
)
def test_of_one_that_adds(check, case):
    check(case)


@parametrize(
    FadingAverage(),
    expected_failures={"check_batch_size_mismatch": "NumPy broadcasts a state of one stream"},
)
def test_of_one_that_fades(check, case):
    check(case)


def at_the_edge(**options):
    return NpxlModel(model_for(ModelConfig(**{**SMALL, **options})))


@parametrize({
    "no memory": at_the_edge(mem_len=0),
    "no memory, places": at_the_edge(mem_len=0, attn_type="al-rfou", clamp_len=9),
    "one key": at_the_edge(attn_window=1),
    "one position": at_the_edge(mem_len=1),
    "attention dropped": at_the_edge(attn_window=4, dropatt=0.3),
    "vanilla": at_the_edge(mem_len=0, attn_type="al-rfou", clamp_len=9, dropout=0.3, dropatt=0.3),
})  # fmt: skip
def test_of_configurations_at_the_edge(check, case):
    check(case)


def an_lstm(adapter=NpxlModel, **options):
    return adapter(model_for(LSTMConfig(**{"vocab_size": 5, "d_model": 6, **options})))


@parametrize({
    "one layer": an_lstm(n_layer=1),
    "two layers, dropped": an_lstm(n_layer=2, dropout=0.3),
    "three layers, dropped": an_lstm(n_layer=3, dropout=0.3),
    "clusters": an_lstm(n_layer=1, cutoffs=(2,), div_val=2, tie_projs=(True, False)),
    "reader": an_lstm(NpxlReader, n_layer=2),
})  # fmt: skip
def test_of_an_lstm(check, case):
    check(case)


@pytest.mark.parametrize("name", ["check_memory_update", "check_exact_reach"])
def test_a_memory_that_never_forgets_is_noticed_or_said_not_to_be_seen(name):
    hoarder = at_the_edge(mem_len=1000)
    hoarder.mem_len = 12
    with pytest.raises(InvariantBroken):
        CHECKS[name](hoarder, Case())
    hoarder.mem_len = 60
    with pytest.raises(Vacuous, match="smaller one"):
        CHECKS[name](hoarder, Case())


def test_nor_is_a_window_that_is_not_there():
    model = at_the_edge(mem_len=2)
    model.window = 4
    with pytest.raises(InvariantBroken):
        CHECKS["check_window"](model, Case())
    model.window = 60
    with pytest.raises(Vacuous, match="smaller one"):
        CHECKS["check_window"](model, Case())


@pytest.mark.parametrize(
    ("name", "seed", "case", "options"),
    [
        (
            "check_window",
            25,
            Case(batch_size=1, lengths=(1, 1, 1, 1), seed=1),
            dict(vocab_size=2, n_layer=2, d_inner=2, mem_len=0, attn_window=2, attn_type="al-rfou",
                 clamp_len=7, d_embed=3, cutoffs=(1,)),
        ),
        (
            "check_exact_reach",
            74,
            Case(batch_size=1, lengths=(2,)),
            dict(vocab_size=7, n_layer=1, d_inner=1, mem_len=2, attn_window=3, untie_r=True,
                 d_embed=64, cutoffs=(2, 3, 4), div_val=4),
        ),
        (
            "check_exact_reach",
            0,
            Case(batch_size=1, lengths=(2,)),
            dict(vocab_size=7, n_layer=1, d_inner=1, mem_len=0, attn_type="al-rfou", clamp_len=2,
                 d_embed=64, cutoffs=(3, 4, 5), div_val=4),
        ),
    ],
)  # fmt: skip
def test_an_attention_so_sharp_that_a_token_is_lost_is_no_narrow_window(
    name, seed, case, options, monkeypatch
):
    config = ModelConfig(n_head=1, d_model=8, d_head=1, tie_weight=False, **options)
    implementation = NpxlModel(model_for(config, seed))
    with pytest.raises(Vacuous, match="in some texts and not in others"):
        CHECKS[name](implementation, case)
    monkeypatch.setattr(dependence, "_MOST_TEXTS", 1)  # one alone does not tell
    with pytest.raises(InvariantBroken):
        CHECKS[name](implementation, case)


@pytest.mark.parametrize("name", ["check_window", "check_exact_reach"])
@pytest.mark.parametrize("seed", range(10))
def test_what_is_left_out_for_what_it_says_is_not_found_right(name, seed):
    class AloneAtPadding(WindowedLinear):
        """A query whose symbol is 0 sees only itself."""

        def _scores(self, inputs, state):
            alone = self.tables[0][inputs]
            return np.where(inputs[..., None] == 0, alone, super()._scores(inputs, state))

    with pytest.raises((Vacuous, InvariantBroken)):
        CHECKS[name](AloneAtPadding(vocab_size=2, seed=seed), Case(lengths=(3, 1, 4), seed=seed))


def test_what_is_seen_too_much_is_reported_though_something_else_drowns(monkeypatch):
    class Peeking(WindowedLinear):
        """Forgets what it should remember, and sees what it should not."""

        def log_probs(self, inputs, state):
            log_p, state = super().log_probs(inputs, state[:, :0])
            return log_p + 1e-9 * inputs[:, -1:, None], state

    monkeypatch.setattr(causality, "drowned", lambda *_: True)
    with pytest.raises(InvariantBroken, match=r"after it"):
        CHECKS["check_exact_reach"](Peeking(), Case(lengths=(3, 1, 4)))


def test_an_error_for_any_batch_is_none_about_its_size():
    class OfTwo(WindowedLinear):
        def log_probs(self, inputs, state):
            if len(inputs) > 2:
                raise NotImplementedError
            return super().log_probs(inputs, state)

    with pytest.raises(NotImplementedError):
        CHECKS["check_batch_size_mismatch"](OfTwo(), Case(batch_size=2))
    with pytest.raises(Inapplicable):
        CHECKS["check_batch_size_mismatch"](at_the_edge(mem_len=0), Case())


@pytest.mark.parametrize("seed", range(5))
def test_a_low_rate_of_dropout_is_not_taken_for_none(seed):
    model = at_the_edge(attn_window=4, dropatt=0.01)
    CHECKS["check_dropout_masks"](model, Case(lengths=(12,), seed=seed))


# What is accused is what is wrong


class OfCopies(WindowedLinear):
    def parameters(self):
        return {"tables": self.tables.copy()}


class ModelOfCopies(NpxlModel):
    def parameters(self):
        return {name: view.copy() for name, view in self.model.params.items()}


@pytest.mark.parametrize("name", ["check_gradients", "check_repeated_tokens"])
def test_parameters_that_are_copies_are_said_to_be_copies(name):
    with pytest.raises(InvariantBroken, match="writing to tables changed no score") as raised:
        CHECKS[name](OfCopies(), Case())
    assert raised.value.found.startswith("parameters() gave copies")
    assert "backward" not in str(raised.value)


def test_where_all_parameters_are_copies_nothing_is_said_of_the_memory():
    model = ModelOfCopies(model_for(ModelConfig(**SMALL, attn_window=4)))
    with pytest.raises(InvariantBroken, match="gave copies: writing to any of them changed no sc"):
        CHECKS["check_stop_gradient"](model, Case())
    with pytest.raises(Vacuous, match="gave copies"):
        CHECKS["check_large_scores"](model, Case())


class Scaled(WindowedLinear):
    """Losses, or gradients, that are multiplied by something."""

    def __init__(self, of_losses=1.0, of_gradients=1.0):
        super().__init__()
        self.of_losses, self.of_gradients = of_losses, of_gradients

    def nll(self, inputs, targets, state):
        nll, state = super().nll(inputs, targets, state)
        return self.of_losses * nll, state

    def gradients(self, *arguments):
        return {"tables": self.of_gradients * super().gradients(*arguments)["tables"]}


@pytest.mark.parametrize(
    ("model", "times", "usually"),
    [
        (Scaled(of_losses=1 / 8), "8", "a mean over the 8 targets"),
        (Scaled(of_gradients=1 / 8), "0.125", "a mean over the 8 targets"),
        (Scaled(of_gradients=1 / 4), "0.25", "a mean over the 4 tokens of a stream"),
        (Scaled(of_gradients=1 / 2), "0.5", "a mean over the 2 streams"),
        (Scaled(of_losses=1 / np.log(2)), "0.693147", "bits in place of nats"),
        (Scaled(of_gradients=-1), "-1", "a wrong sign"),
        (Scaled(of_gradients=3), "3", "a factor too much"),
    ],
)
def test_gradients_that_are_all_scaled_are_said_to_be(model, times, usually):
    with pytest.raises(InvariantBroken, match=f"and all are {times} times as large") as raised:
        CHECKS["check_gradients"](model, Case(batch_size=2, lengths=(3, 4)))
    assert raised.value.usually.startswith(usually)


@pytest.mark.parametrize(
    ("factor", "usually"),
    [(1 / 6, "a mean over the 6 targets"), (1 / np.log(2), "bits in place of nats")],
)
def test_losses_that_are_all_scaled_are_said_to_be(factor, usually):
    with pytest.raises(InvariantBroken, match=f"each is {factor:.6g} times") as raised:
        CHECKS["check_reading_order"](Scaled(of_losses=factor), Case(batch_size=2, lengths=(3, 4)))
    assert raised.value.usually.startswith(usually)


@pytest.mark.parametrize(
    "name", ["check_gradients", "check_reading_order", "check_ignored_targets"]
)
def test_one_loss_for_all_targets_is_said_to_be_none_for_each(name):
    class Mean(WindowedLinear):
        def nll(self, inputs, targets, state):
            nll, state = super().nll(inputs, targets, state)
            return nll.mean(), state

    with pytest.raises(InvariantBroken, match=r"one loss for each target, \[2, \d\]") as raised:
        CHECKS[name](Mean(), Case())
    assert "a mean in place of losses" in raised.value.usually


def test_gradients_that_are_not_added_up_are_said_not_to_be():
    class Overwriting(WindowedLinear):
        def gradients(self, inputs, targets, state, dnll):
            log_p, _ = self.log_probs(inputs, state)
            d_scores = np.exp(log_p) - (targets[..., None] == np.arange(self.vocab_size))
            d_tables = np.zeros_like(self.tables)
            for j, (here, symbols) in enumerate(self._seen(inputs, state)):
                d_tables[j][symbols] += (d_scores * dnll[..., None])[:, here]
            return {"tables": d_tables}

    with pytest.raises(InvariantBroken, match=r"dW\[ids\] \+= dY") as raised:
        CHECKS["check_repeated_tokens"](Overwriting(), Case())
    assert "sign" not in str(raised.value)


CONTENT = {
    "check_probabilities": "uniform is a distribution",
    "check_ignored_targets": "losses of 0 stand beside others",
    "check_batch_size_mismatch": "an error is an error",
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@given(case=cases())
def test_no_check_is_content_with_a_model_that_says_nothing(check, case):
    if check.__name__ in CONTENT:
        assert found(check, Indifferent(), case).compared > 0
        return
    with pytest.raises((Vacuous, AssertionError)):
        check(Indifferent(), case)


TestStreamsOfModels = stream_machine(
    lambda: NpxlModel(model_for(ModelConfig(**SMALL, attn_window=4)))
).TestCase
TestStreamsWithoutAWindow = stream_machine(
    lambda: NpxlModel(model_for(ModelConfig(**SMALL, ext_len=2, pre_lnorm=True)))
).TestCase
TestStreamsFromZeros = stream_machine(
    lambda: NpxlModel(
        model_for(ModelConfig(**SMALL, attn_window=3, initial_memory="zeros", cutoffs=(2,)))
    )
).TestCase
TestStreamsOfPlaces = stream_machine(
    lambda: NpxlModel(model_for(ModelConfig(**SMALL, attn_type="al-rfou", clamp_len=9)))
).TestCase
TestStreamsOfReaders = stream_machine(
    lambda: NpxlReader(model_for(ModelConfig(**SMALL, attn_window=5)))
).TestCase
TestStreamsWithoutAMemory = stream_machine(
    lambda: at_the_edge(mem_len=0, attn_type="al-rfou", clamp_len=9)
).TestCase
TestStreamsOfAnLSTM = stream_machine(an_lstm).TestCase
TestStreamsOfAnLSTMsReader = stream_machine(lambda: an_lstm(NpxlReader)).TestCase
TestStreamsOfOneThatAdds = stream_machine(WindowedLinear).TestCase


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    n_layer=st.integers(1, 3),
    mem_len=st.integers(0, 6),
    ext_len=st.integers(0, 2),
    data=st.data(),
)
def test_the_law_of_reach_is_that_of_the_page(lengths, n_layer, mem_len, ext_len, data):
    window = data.draw(st.integers(1, mem_len + 1))
    options = {**SMALL, "n_layer": n_layer, "mem_len": mem_len}
    config = ModelConfig(**options, attn_window=window, ext_len=ext_len)
    model = NpxlModel(model_for(config))
    tokens = np.arange(sum(lengths))
    expected = np.maximum(0, tokens - n_layer * (window - 1))
    np.testing.assert_array_equal(oldest_tokens(model, lengths), expected)
    assert reach(model) == config.reach == n_layer * (window - 1)


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([6], [0, 0, 0, 0, 0, 0]),  # one segment: all of it
        ([3, 3], [0, 0, 0, 0, 0, 0]),  # M = 2 and two layers: 1, 2 | 3, which read 0
        ([1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1]),  # n_layer · M
        ([2, 1, 3], [0, 0, 0, 0, 0, 0]),
    ],
)  # fmt: skip
def test_the_law_of_reach_without_a_window(lengths, expected):
    model = NpxlModel(model_for(ModelConfig(**{**SMALL, "mem_len": 2})))
    assert oldest_tokens(model, lengths).tolist() == expected
    assert reach(model) is None


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6), n_layer=st.integers(1, 3))
def test_an_lstm_reaches_everything_before(lengths, n_layer):
    model = an_lstm(n_layer=n_layer)
    assert not oldest_tokens(model, lengths).any()
    assert reach(model) is model.model.config.reach is None


def test_a_case_reads_like_one():
    case = Case(batch_size=2, lengths=(3, 1), position=5, row=3)
    assert (case.length, case.at) == (4, (1, 1))
    np.testing.assert_array_equal(case.text(WindowedLinear()), case.text(WindowedLinear()))


def test_a_model_that_is_sure_of_its_text_is_not_accused():
    """Its gradients are of p − 1 with p nearly 1, which is no more exact than 1 is."""
    config = ModelConfig(
        vocab_size=6, n_layer=1, n_head=2, d_model=6, d_head=5, d_inner=1, mem_len=0,
        attn_type="al-rfou", clamp_len=2, pre_lnorm=True, tie_weight=False, d_embed=66,
        cutoffs=(1, 4, 5), div_val=4,
    )  # fmt: skip
    case = Case(batch_size=1, lengths=(4, 5, 1), seed=203)
    with pytest.raises(Vacuous, match="p nearly 1"):
        CHECKS["check_gradient_linearity"](NpxlModel(model_for(config, 46)), case)
