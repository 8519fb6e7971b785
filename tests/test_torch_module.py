"""Adapters of modules of torch: faithful to the module, and leaving it as it was.

Skipped without torch, but for what is said when it is missing.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from npxl import NpxlError
from npxl.invariants import CHECKS, Case, Inapplicable
from npxl.invariants.torch_module import TorchModule

EXAMPLES = Path(__file__).parent.parent / "examples" / "testing"
CASES = [Case(), Case(batch_size=3, lengths=(5, 2, 1), position=4, row=2, seed=1)]

UNCLAIMED = {
    "check_ignored_targets", "check_longer_memory", "check_reference", "check_generation",
    "check_dropout_masks", "check_dropout_scale", "check_dropout_gradients",
}  # fmt: skip
"""Checks of what the example's module does not have."""


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="needs torch: pip install '.[peers]'")


@pytest.fixture
def module(torch, monkeypatch):
    """The example's Transformer-XL, in float64, with random parameters."""
    monkeypatch.syspath_prepend(EXAMPLES)
    from transformer_xl import TransformerXL

    torch.manual_seed(0)
    return TransformerXL(vocab_size=7).double()


def adapted(module, **options):
    return TorchModule(
        module,
        **{
            "forward": module,
            "start": module.no_memory,
            "vocab_size": 7,
            "n_layer": 2,
            "mem_len": 4,
            "window": 5,
            "select": lambda memory, rows: [each[list(rows)] for each in memory],
            **options,
        },
    )


def test_a_missing_torch_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NpxlError, match=r"torch.*not installed.*pip install 'npxl\[torch\]'"):
        TorchModule(object(), None, None, vocab_size=2, n_layer=1, mem_len=0)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", CHECKS)
def test_a_correct_module_is_not_accused(torch, module, name, case):
    implementation = adapted(module, memory=torch.stack)
    if name in UNCLAIMED:
        with pytest.raises(Inapplicable):
            CHECKS[name](implementation, case)
        return
    finding = CHECKS[name](implementation, case)
    assert finding.figure <= finding.tolerance


def test_scores_and_losses_are_the_modules(torch, module):
    implementation = adapted(module)
    inputs, targets = np.arange(6).reshape(2, 3), np.arange(1, 7).reshape(2, 3)
    log_p, state = implementation.log_probs(inputs, implementation.start(2))
    expected, memory = module(torch.tensor(inputs), module.no_memory(2))
    np.testing.assert_array_equal(log_p, expected.detach().numpy())
    assert all(torch.equal(mine, each) for mine, each in zip(state, memory, strict=True))
    nll, _ = implementation.nll(inputs, targets, implementation.start(2))
    np.testing.assert_array_equal(nll, -np.take_along_axis(log_p, targets[..., None], 2)[..., 0])


def test_parameters_can_be_written_to(module):
    implementation = adapted(module)
    inputs = np.zeros((1, 2), int)
    before, _ = implementation.log_probs(inputs, implementation.start(1))
    implementation.parameters()["vocabulary.bias"][0] += 1
    after, _ = implementation.log_probs(inputs, implementation.start(1))
    assert (after[..., 0] > before[..., 0]).all()


def test_a_tied_tensor_has_one_name_and_the_gradient_of_both_uses(torch, module):
    def gradients():
        return adapted(module).gradients(inputs, inputs, module.no_memory(1), np.ones((1, 3)))

    inputs = np.array([[1, 2, 1]])
    with torch.no_grad():
        module.vocabulary.weight.copy_(module.embedding.weight)
    untied = gradients()
    module.vocabulary.weight = module.embedding.weight
    tied = gradients()
    assert "vocabulary.weight" not in tied
    expected = untied["vocabulary.weight"] + untied["embedding.weight"]
    np.testing.assert_allclose(tied["embedding.weight"], expected, atol=1e-12)


def test_a_state_that_is_not_detached_carries_gradients(torch, module, monkeypatch):
    """So that a check of the stop-gradient can see it."""
    implementation = adapted(module)
    inputs, dnll = np.array([[1, 2, 3]]), np.ones((1, 3))

    def gradient():
        _, state = implementation.log_probs(inputs, implementation.start(1))
        twice = [implementation.gradients(inputs, inputs, state, dnll) for _ in range(2)]
        np.testing.assert_array_equal(*(each["layers.0.out.weight"] for each in twice))
        return twice[0]["layers.0.out.weight"]

    stopped = gradient()
    monkeypatch.setattr(torch.Tensor, "detach", lambda self: self)
    monkeypatch.setattr(torch.Tensor, "numpy", lambda self: np.array(self.tolist()))
    assert np.abs(gradient() - stopped).max() > 1e-3


def test_a_parameter_that_is_not_used_has_a_gradient_of_zeros(torch, module):
    module.idle = torch.nn.Parameter(torch.ones(2, 3, dtype=torch.float64))
    inputs = np.zeros((1, 2), int)
    found = adapted(module).gradients(inputs, inputs, module.no_memory(1), np.ones((1, 2)))
    assert found["idle"].shape == (2, 3)
    assert not found["idle"].any()


@pytest.mark.parametrize("name", [name for name in CHECKS if name not in UNCLAIMED])
def test_what_is_frozen_is_a_constant(torch, module, name):
    module.embedding.weight.requires_grad_(False)
    module.register_parameter("table", torch.nn.Parameter(torch.ones(2).double(), False))
    implementation = adapted(module, memory=torch.stack)
    assert not {"embedding.weight", "table"} & implementation.parameters().keys()
    finding = CHECKS[name](implementation, CASES[0])
    assert finding.figure <= finding.tolerance


def test_a_module_that_learns_nothing_is_a_sentence_where_it_should(module):
    implementation = adapted(module.requires_grad_(False))
    inputs = np.zeros((1, 2), int)
    implementation.nll(inputs, inputs, implementation.start(1))
    for name in ("check_gradients", "check_gradient_linearity", "check_stop_gradient"):
        with pytest.raises(NpxlError, match=r"nothing to learn.*module\.requires_grad_\(\)"):
            CHECKS[name](implementation, Case())
    with pytest.raises(NpxlError, match="nothing to learn"):
        implementation.gradients(inputs, inputs, implementation.start(1), np.ones((1, 2)))


def test_dropout_is_of_the_seed_and_nothing_else_changes(torch, module):
    module.layers[0].feed_forward.append(torch.nn.Dropout(0.5))
    module.layers[1].eval()
    implementation, inputs = adapted(module, dropout=True), np.arange(6)[None]
    torch.manual_seed(5)
    state = torch.get_rng_state()

    def losses(reader):
        return reader.nll(inputs, inputs, reader.start(1))[0]

    of_seed = [losses(implementation.train(seed)) for seed in (3, 3, 4)]
    evaluated = [losses(implementation) for _ in range(2)]
    np.testing.assert_array_equal(of_seed[0], of_seed[1])
    np.testing.assert_array_equal(*evaluated)
    assert (of_seed[0] != of_seed[2]).any()
    assert (of_seed[0] != evaluated[0]).any()
    assert torch.equal(state, torch.get_rng_state())
    assert module.training
    assert module.layers[0].training
    assert not module.layers[1].training


def test_a_capability_is_there_when_it_was_given(module):
    implementation = adapted(module, select=None, initial_memory="zeros")
    missing = ("memory", "select", "with_mem_len", "generate", "train")
    assert all(getattr(implementation, name) is None for name in missing)
    assert implementation.initial_memory == "zeros"
    assert implementation.tolerance == 1e-11
    assert adapted(module.float()).tolerance == 1e-4
    assert adapted(module, tolerance=0.5).tolerance == 0.5


def test_what_cannot_be_declared_is_a_sentence(module):
    for name in ("initial_memories", "_forward", "parameters"):
        with pytest.raises(NpxlError, match=f"{name} is declared, but what can be declared is enc"):
            adapted(module, **{name: "zeros"})
    with pytest.raises(NpxlError, match="initial_memory is 'zeroes', but it must be empty or zer"):
        adapted(module, initial_memory="zeroes")


def test_what_cannot_be_checked_is_a_sentence(torch, module):
    with pytest.raises(NpxlError, match=r"module is of type list.*torch\.nn\.Module"):
        TorchModule([], None, None, vocab_size=2, n_layer=1, mem_len=0)
    with pytest.raises(NpxlError, match="no parameters"):
        TorchModule(torch.nn.ReLU(), None, None, vocab_size=2, n_layer=1, mem_len=0)
    with pytest.raises(NpxlError, match=r"torch\.bfloat16.*module\.double\(\)"):
        adapted(module.bfloat16())
    module.double().layers[0].float()
    with pytest.raises(NpxlError, match=r"torch\.float32 and torch\.float64"):
        adapted(module)
    with pytest.raises(NpxlError, match=r"on meta.*module\.cpu\(\)"):
        adapted(module.double().to("meta"))
