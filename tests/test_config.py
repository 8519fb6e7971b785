"""Every field says what is wrong with a bad value; presets are the released models."""

import json
import math
from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from npxl import LSTMConfig, ModelConfig, NpxlError, TrainConfig, TransformerXL
from npxl.bench.arithmetic import training_step
from npxl.cli.options import configured
from npxl.config import LanguageModelConfig, config_of, from_dict, to_dict
from npxl.params import n_parameters
from npxl.presets import PRESETS, preset
from npxl.testing.strategies import ATTN_TYPES, LEARNED, configs

NOT_INTEGERS = [1.0, "3", True, math.nan]
NOT_NUMBERS = ["0.1", None, True, math.nan, math.inf, -math.inf]
NOT_BOOLEANS = [0, 1, "yes", None]

BAD = [
    (ModelConfig, "vocab_size n_layer n_head d_model d_head d_inner", [0, -1, None, *NOT_INTEGERS]),
    (ModelConfig, "mem_len ext_len", [-1, None, *NOT_INTEGERS]),
    (ModelConfig, "attn_window clamp_len", [0, -1, *NOT_INTEGERS]),
    (ModelConfig, "dropout dropatt", [-0.1, 1.0, 1, 2, *NOT_NUMBERS]),
    (ModelConfig, "init_std proj_init_std", [-0.02, *NOT_NUMBERS]),
    (ModelConfig, "d_embed", [0, -1, *NOT_INTEGERS]),
    (ModelConfig, "div_val", [0, -1, None, *NOT_INTEGERS]),
    (
        ModelConfig,
        "cutoffs",
        [None, 3, "3", (0, 3), (-1,), (3, 3), (5, 3), (256,), (3, 999), (1.0,), ("3",), (True,)],
    ),
    (ModelConfig, "tie_projs", [None, True, (0,), ("no",), (False, False), (True,)]),
    (ModelConfig, "layer_norm_epsilon", [0.0, -1e-5, *NOT_NUMBERS]),
    (ModelConfig, "pre_lnorm untie_r tie_weight", NOT_BOOLEANS),
    (ModelConfig, "initial_memory", ["zero", "", None, 0]),
    (ModelConfig, "attn_type", ["Dai", "alrfou", "", None, 0]),
    (LSTMConfig, "vocab_size n_layer d_model", [0, -1, None, *NOT_INTEGERS]),
    (LSTMConfig, "dropout", [-0.1, 1.0, *NOT_NUMBERS]),
    (LSTMConfig, "init_std proj_init_std", [-0.02, *NOT_NUMBERS]),
    (LSTMConfig, "d_embed", [0, *NOT_INTEGERS]),
    (LSTMConfig, "div_val", [0, None, *NOT_INTEGERS]),
    (LSTMConfig, "cutoffs", [None, 3, (3, 3), (256,), (1.0,)]),
    (LSTMConfig, "tie_projs", [None, (0,), (True,)]),
    (LSTMConfig, "tie_weight", NOT_BOOLEANS),
    (
        TrainConfig,
        "batch_size batch_chunk tgt_len steps eval_interval log_interval",
        [0, -1, None, *NOT_INTEGERS],
    ),
    (TrainConfig, "warmup_steps patience seed", [-1, None, *NOT_INTEGERS]),
    (TrainConfig, "workers min_count", [0, -1, *NOT_INTEGERS]),
    (TrainConfig, "clip", [0, -1e-3, "0.1", True, math.nan, math.inf, -math.inf]),
    (TrainConfig, "minutes", [0, -1.0, "5", True, math.nan, math.inf]),
    (TrainConfig, "lr adam_epsilon", [0, -1e-3, *NOT_NUMBERS]),
    (TrainConfig, "optimizer", ["Adam", "adamw", "", None, 0]),
    (TrainConfig, "momentum beta1 beta2", [-0.1, 1.0, *NOT_NUMBERS]),
    (TrainConfig, "schedule", ["linear", "dev_perf", "", None, 0]),
    (TrainConfig, "decay_rate", [0, 1, 1.0, -0.5, 2, *NOT_NUMBERS]),
    (TrainConfig, "lr_min_ratio", [-0.1, 1.1, *NOT_NUMBERS]),
    (TrainConfig, "save_interval", [-1.0, *NOT_NUMBERS]),
    (TrainConfig, "varlen", NOT_BOOLEANS),
    (TrainConfig, "loss", ["none", "", None, 0.5]),
    (TrainConfig, "dtype", ["float16", "double", None]),
    (TrainConfig, "dataset", ["wikitext", "", None]),
    (TrainConfig, "vocabulary", ["byte", ""]),
    (TrainConfig, "tokenizer", ["", 3, True]),
]
CASES = [
    (kind, name, value) for kind, names, values in BAD for name in names.split() for value in values
]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_bad_value_is_an_error_that_names_field_and_value(kind, name, value):
    with pytest.raises(NpxlError) as error:
        kind(**{name: value})
    assert str(error.value).startswith(f"{name} is {value!r}, but it must be ")


@pytest.mark.parametrize("kind", [ModelConfig, LSTMConfig, TrainConfig])
def test_every_field_is_validated(kind):
    assert {field.name for field in fields(kind)} == {name for k, name, _ in CASES if k is kind}


@pytest.mark.parametrize(
    ("values", "reader"),
    [
        (dict(momentum=0.9), "sgd"),
        (dict(optimizer="adagrad", momentum=0.9), "sgd"),
        (dict(optimizer="sgd", beta1=0.8), "adam"),
        (dict(optimizer="sgd", beta2=0.8), "adam"),
        (dict(optimizer="adagrad", adam_epsilon=1e-6), "adam"),
        (dict(patience=2), "plateau"),
        (dict(schedule="inv_sqrt", decay_rate=0.1), "plateau"),
        (dict(schedule="inv_sqrt", lr_min_ratio=0.0), "cosine or plateau"),
        (dict(schedule="constant", lr_min_ratio=0.1), "cosine or plateau"),
    ],
)
def test_an_option_that_nothing_reads_is_an_error_that_says_what_would(values, reader):
    name, value = next((n, v) for n, v in values.items() if n not in ("optimizer", "schedule"))
    with pytest.raises(NpxlError, match=rf"^{name} is {value}, but only the .* {reader} reads it"):
        TrainConfig(**values)


def test_a_floor_of_the_rate_is_read_by_two_schedules():
    for schedule in ("cosine", "plateau"):
        TrainConfig(schedule=schedule, lr_min_ratio=0.1)


def test_an_option_of_the_preset_that_nothing_reads_any_more_is_not_the_users_to_leave_out():
    assert preset("enwik8-base").train.lr_min_ratio == 0
    _, train, _ = configured("enwik8-base", None, {"schedule": "constant"})
    assert train == replace(preset("enwik8-base").train, schedule="constant", lr_min_ratio=0.01)
    with pytest.raises(NpxlError, match=r"lr_min_ratio is 0\.5, but only"):
        configured("enwik8-base", None, {"schedule": "constant", "lr_min_ratio": 0.5})


@pytest.mark.parametrize("kind", [ModelConfig, LSTMConfig])
def test_projections_that_there_are_not_are_not_drawn(kind):
    kind(d_embed=4, proj_init_std=0.4)
    with pytest.raises(NpxlError, match=r"proj_init_std is 0\.4, but it must be left out: where"):
        kind(proj_init_std=0.4)


def test_a_configuration_answers_whatever_is_asked_of_all():
    class Incomplete(ModelConfig):
        longest_reach = LanguageModelConfig.longest_reach

    for kind in (LanguageModelConfig, Incomplete):
        with pytest.raises(TypeError, match="longest_reach"):
            kind()


@pytest.mark.parametrize("kind", [ModelConfig, LSTMConfig, TrainConfig])
def test_every_field_is_documented(kind):
    for field in fields(kind):
        assert f"\n    {field.name}\n        " in kind.__doc__


def test_there_are_no_more_chunks_than_streams():
    assert TrainConfig(batch_size=3, batch_chunk=3).batch_chunk == 3
    with pytest.raises(NpxlError, match=r"batch_chunk is 4, but .* at most the batch_size, 3"):
        TrainConfig(batch_size=3, batch_chunk=4)


def test_an_odd_width_is_an_error_that_says_why():
    with pytest.raises(NpxlError, match=r"d_model is 129, but it must be even.*try 130"):
        ModelConfig(d_model=129)
    ModelConfig(d_model=129, attn_type="shaw", clamp_len=1)  # no sinusoids


@pytest.mark.parametrize("attn_type", LEARNED)
def test_a_learned_table_needs_its_size(attn_type):
    with pytest.raises(NpxlError, match=rf"clamp_len is None, but attn_type {attn_type} learns"):
        ModelConfig(attn_type=attn_type)
    config = ModelConfig(attn_type=attn_type, clamp_len=7)
    tables = {
        name: shape for name, shape in TransformerXL.parameter_shapes(config).items()
        if shape[0] == 8
    }  # fmt: skip
    assert len(tables) >= config.n_layer


def test_biases_that_there_are_not_cannot_be_untied():
    for attn_type in set(ATTN_TYPES) - {"dai"}:
        with pytest.raises(NpxlError, match="untie_r is True, but only the attn_type dai reads it"):
            ModelConfig(attn_type=attn_type, clamp_len=3, untie_r=True)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ModelConfig, "n_layer", 10**6),
        (ModelConfig, "d_inner", 2**31),
        (ModelConfig, "mem_len", 10**20),
        (ModelConfig, "attn_window", 10**20),
        (TrainConfig, "tgt_len", 10**20),
    ],
)
def test_what_no_machine_holds_is_an_error(kind, name, value):
    with pytest.raises(NpxlError, match=rf"{name} is {value}, but it must be at most \d+\."):
        kind(**{name: value})
    TrainConfig(seed=10**20)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(vocab_size=5, cutoffs=[2, 5]), r"cutoffs is \(2, 5\).*ascending.*than vocab_size, 5"),
        (dict(cutoffs=[0]), "cutoffs is .*at least 1"),
        (dict(cutoffs=[9, 20], div_val=12), "d_embed, 128, divided by it 2 times leaves cluster 2"),
        (dict(cutoffs=[9], div_val=4, d_embed=3), "d_embed, 3, divided by it 1 times"),
        (dict(cutoffs=[9], div_val=2, tie_projs=[True]), "one value for each of the 2 clusters"),
        (dict(cutoffs=[9], tie_projs=[False, True]), "where div_val is 1 and d_embed is d_model"),
    ],
)
def test_clusters_that_cannot_be_are_an_error_that_says_why(values, message):
    with pytest.raises(NpxlError, match=message):
        ModelConfig(**values)


def test_clusters_in_lists_are_those_in_tuples():
    config = ModelConfig(cutoffs=[np.int64(9)], div_val=2, tie_projs=[False, True])
    assert config == ModelConfig(cutoffs=(9,), div_val=2, tie_projs=(False, True))
    assert hash(config) == hash(replace(config, cutoffs=[9]))
    assert [list(symbols)[::246] for symbols in config.clusters] == [[0], [9, 255]]
    assert config.cluster_widths == (128, 64)
    ModelConfig(cutoffs=[9], tie_projs=[False, False])  # nothing is tied


@pytest.mark.parametrize(
    "values",
    [
        dict(mem_len=0, attn_window=1), dict(vocab_size=1), dict(dropout=0), dict(init_std=0),
        dict(attn_window=None, clamp_len=None), dict(n_head=3, d_head=7, d_model=2),
    ],
)  # fmt: skip
def test_the_edges_are_legal(values):
    ModelConfig(**values)


def test_numpys_numbers_become_pythons():
    config = ModelConfig(
        n_layer=np.int64(3), mem_len=np.uint8(7), attn_window=np.int32(5), dropout=np.float64(0.25),
        init_std=np.float32(0.5),
    )  # fmt: skip
    expected = ModelConfig(n_layer=3, mem_len=7, attn_window=5, dropout=0.25, init_std=0.5)
    assert config == expected
    assert json.dumps(to_dict(config)) == json.dumps(to_dict(expected))
    plain = {int, float, bool, str, list, type(None)}
    assert {type(value) for value in to_dict(config).values()} == plain
    with pytest.raises(NpxlError, match=r"n_layer is .*0.*, but it must be"):
        ModelConfig(n_layer=np.int64(0))


def test_a_configuration_does_not_change():
    with pytest.raises(AttributeError):
        ModelConfig().n_layer = 3


@given(config=configs())
def test_plain_values_round_trip_through_json(config):
    assert from_dict(ModelConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_an_unknown_key_is_an_error_that_lists_the_known_ones():
    with pytest.raises(NpxlError, match=r"ModelConfig has no option 'n_layers'; it has .*n_layer,"):
        from_dict(ModelConfig, {"n_layers": 3})


@pytest.mark.fault("nanoGPT #145")
def test_the_defaults_are_for_a_cpu():
    """Half an hour at 20 billion operations a second, which two cores of today exceed."""
    model, train = ModelConfig(), TrainConfig()
    operations = train.steps * training_step(model, train.batch_size, train.tgt_len)
    assert operations < 30 * 60 * 20e9
    assert n_parameters(TransformerXL.parameter_shapes(model)) < 2e6


def test_an_unknown_preset_is_an_error_that_lists_the_known_ones():
    with pytest.raises(NpxlError, match="no preset 'huge'") as error:
        preset("huge")
    for name in PRESETS:
        assert name in str(error.value)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("enwik8-base", 41_055_436),
        ("enwik8-large", 277_231_820),
        ("wt103-base", 151_107_538),
        ("wt103-large", 285_170_506),
        ("lm1b-base", 357_812_065),
    ],
)
def test_presets_have_as_many_parameters_as_the_released_models(name, parameters):
    assert n_parameters(TransformerXL.parameter_shapes(preset(name).model)) == parameters


def test_the_original_by_name_has_the_defaults_of_its_train_py():
    """Those of our defaults that are its too are pinned here, where they might change."""
    model, train = preset("original").model, preset("original").train
    expected = dict(
        n_layer=12, n_head=10, d_head=50, d_model=500, d_inner=1000, dropout=0.0, dropatt=0.0,
        init_std=0.02, tie_weight=True, pre_lnorm=False, ext_len=0, mem_len=0, attn_window=None,
        clamp_len=None, attn_type="dai",
    )  # fmt: skip
    assert {name: getattr(model, name) for name in expected} == expected
    expected = dict(
        optimizer="adam", lr=0.00025, momentum=0.0, beta1=0.9, beta2=0.999, adam_epsilon=1e-8,
        schedule="cosine", warmup_steps=0, decay_rate=0.5, lr_min_ratio=0.0, clip=0.25,
        steps=100_000, batch_size=60, batch_chunk=1, tgt_len=70, varlen=False, seed=1111,
        log_interval=200, eval_interval=4000, patience=0, loss="full",
    )  # fmt: skip
    assert {name: getattr(train, name) for name in expected} == expected


@given(config=configs())
def test_parameters_are_counted_by_the_closed_formula(config):
    d, di, width = config.d_model, config.d_inner, config.n_head * config.d_head
    rows = 1 + (config.clamp_len or 0)
    attention = 4 * width * d
    attention += {
        "dai": width * d,
        "shaw": width + rows * (width + config.n_head),
        "vaswani": 0,
        "al-rfou": rows * d,
    }[config.attn_type]
    biases = 2 * width * (config.n_layer if config.untie_r else 1) * (config.attn_type == "dai")
    layers = config.n_layer * (attention + 2 * d * di + di + 5 * d)
    bounds, d_embed, div_val = (0, *config.cutoffs, config.vocab_size), config.d_embed or d, 1
    table, projections = 0, []
    for start, stop in pairwise(bounds):
        table += (stop - start) * (d_embed // div_val)
        projections.append(d * (d_embed // div_val))
        div_val *= config.div_val
    tables = table * (1 if config.tie_weight else 2) + config.vocab_size
    tables += len(config.cutoffs) * (d_embed + 1)
    if config.div_val > 1:
        tables += sum(projections)
    elif d_embed != d:
        tables += d * d_embed
    else:
        projections = []
    ties = config.tie_projs or [False] * len(projections)
    tables += sum(size for size, tied in zip(projections, ties, strict=True) if not tied)
    assert n_parameters(TransformerXL.parameter_shapes(config)) == layers + biases + tables


@pytest.mark.parametrize(("n_layer", "window", "reach"), [(3, 5, 12), (1, 1, 0), (4, None, None)])
def test_reach(n_layer, window, reach):
    assert replace(ModelConfig(), n_layer=n_layer, attn_window=window).reach == reach


@pytest.mark.parametrize(
    ("window", "reach", "exact"),
    [(None, 30, False), (30, 30, False), (10, 18, False), (9, 16, True)],
)
def test_reach_in_segments(window, reach, exact):
    """Two layers that see 8 positions in memory and 8 of the segment, the last one itself."""
    config = ModelConfig(n_layer=2, mem_len=8, attn_window=window)
    assert (config.longest_reach(tgt_len=8), config.reach_is_exact) == (reach, exact)


@pytest.mark.parametrize("ext_len", [0, 3])
def test_without_memory_nothing_reaches_out_of_its_segment(ext_len):
    config = ModelConfig(n_layer=3, mem_len=0, ext_len=ext_len)
    assert config.longest_reach(tgt_len=8) == 7 + ext_len
    assert replace(config, attn_window=2).longest_reach(tgt_len=8) == 3


def test_an_lstm_reaches_back_to_the_beginning():
    config = LSTMConfig()
    assert config.reach is config.longest_reach(tgt_len=8) is None
    assert config.reach_is_exact


def test_the_options_of_an_lstm_are_among_a_transformer_xls():
    """So that one list of options on the command line is that of both."""
    assert {f.name for f in fields(LSTMConfig)} < {f.name for f in fields(ModelConfig)}


def test_an_unknown_architecture_is_an_error_that_lists_the_known_ones():
    with pytest.raises(NpxlError, match="no architecture 'gru'; npxl has transformer_xl, lstm"):
        config_of("gru", {})
