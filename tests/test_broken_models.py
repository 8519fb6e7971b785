"""Meta-tests: the checks catch what they claim, on models that one wrong line has broken."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from broken.catalogue import KINDS, MUTANTS, implementation
from broken.catching import broken_model, cases, caught
from broken.copies import Copy
from broken.matrix import FIRST, noticing, page, rows
from hypothesis import settings
from numerical import central_difference
from support import tokens
from test_known_faults import rows_of_the_page

from npxl.invariants import CHECKS, Inapplicable, Vacuous
from npxl.invariants.adapters import NpxlModel

PAGE = Path(__file__).parent.parent / "docs" / "broken_models.md"

OF_NO_MODEL = {
    "an interface": (
        "KY #98", "HF #318", "HF #617", "HF #9129", "HF #678", "HF #690", "HF #848", "HF #29650",
        "KY on torch 2: import",
    ),
    "initial parameters": ("HF #6236",),
    "training": (
        "KY #69", "KY #24", "KY #92", "KY #102", "fastai #1736", "nanoGPT #136", "nanoGPT #167",
        "nanoGPT #215", "KY #14", "nanoGPT #145",
    ),
    "data and vocabularies": (
        "HF #466", "HF #2000", "HF #4459", "laekov/fastmoe #163",
        "facebookresearch/adaptive-span #5", "KY #81", "NV #1011",
    ),
    "claims": (
        "KY #101", "KY #87", "KY #39", "HF #308", "google-research/bert #356", "KY #16", "KY #35",
        "KY #109",
    ),
    "compilers and threads": (
        "hyungkwonko/umato #16", "numbagg #287", "numba #6933", "numba #6637", "threadpoolctl #1",
        "threadpoolctl #44", "numba #4908", "numba #5566", "numba #4032", "outlines #983",
        "pylops #777", "numba #9350", "numba #9312",
    ),
    "files": (
        "safetensors #762", "SimpleTuner #2714", "unsloth-zoo #190", "unsloth-zoo #1078",
        "burn #5479", "safetensors #458",
    ),
}  # fmt: skip
"""Sources of docs/known_faults.md whose faults a model's scores and gradients cannot show."""

SETTINGS = list({
    (str(m.options), m.reads, m.architecture): (m.options, m.reads, m.architecture) for m in MUTANTS
}.values())  # fmt: skip

each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


def test_a_mutant_is_one_line_of_npxl_and_another_one():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
    for mutant in MUTANTS:
        assert len(mutant.lines) == 1, f"{mutant.where} has that line {len(mutant.lines)} times"
        assert mutant.before != mutant.after
        assert "\n" not in mutant.after


def test_a_mutant_is_to_be_caught_by_a_check_that_names_its_kind():
    for mutant in MUTANTS:
        assert set(mutant.caught_by) & set(KINDS[mutant.kind][1]), mutant.name
    assert {mutant.kind for mutant in MUTANTS} == set(KINDS)


def test_every_check_has_a_mutant_to_catch():
    assert set(CHECKS) <= {check for mutant in MUTANTS for check in mutant.caught_by}


def test_every_known_fault_is_among_the_mutants_or_is_none_of_a_model():
    of_the_page = {source for sources, _, _ in rows_of_the_page() for source in sources}
    of_mutants = {source for mutant in MUTANTS for source in mutant.known_as}
    of_others = {source for sources in OF_NO_MODEL.values() for source in sources}
    assert of_mutants | of_others == of_the_page
    assert not of_mutants & of_others


@each_mutant
def test_the_checks_that_name_a_fault_find_it(mutant):
    model = broken_model(mutant)
    for name in mutant.caught_by:
        found = caught(CHECKS[name], model, FIRST)
        assert found is not None, f"{name} does not notice that {mutant.name}"


def said():
    """Of each fault, the checks that notice it, as the page says."""
    return rows(PAGE.read_text(encoding="utf-8"))


def test_the_page_has_every_fault_and_who_notices_it():
    assert page(said()) == PAGE.read_text(encoding="utf-8")
    for mutant in MUTANTS:
        assert set(mutant.caught_by) <= set(said()[mutant.name])


@pytest.mark.skipif(settings().max_examples < 1000, reason="takes minutes: a thorough profile")
@each_mutant
def test_the_page_is_what_the_checks_say(mutant):
    assert noticing(mutant) == said()[mutant.name]


@pytest.mark.parametrize(("options", "reads", "architecture"), SETTINGS)
def test_the_same_models_without_a_fault_pass_every_check(options, reads, architecture):
    model = implementation(Copy(None), options, reads, architecture)
    for check in CHECKS.values():
        for case in cases(2):
            with suppress(Inapplicable, Vacuous):
                check(model, case)


# A fault that no line of npxl can have, since nothing differentiates a memory


class Untruncated(NpxlModel):
    """Gradients that go on into earlier segments: differences, with memory computed anew."""

    memory = select = embeddings = (
        None  # of states that are a memory, and what it was computed from
    )

    def start(self, batch_size):
        return super().start(batch_size), ()

    def log_probs(self, inputs, state):
        scores, memory = super().log_probs(inputs, state[0])
        return scores, (memory, (*state[1], inputs))

    def nll(self, inputs, targets, state):
        losses, memory = super().nll(inputs, targets, state[0])
        return losses, (memory, (*state[1], inputs))

    def gradients(self, inputs, targets, state, dnll):
        def losses():
            now = self.start(len(inputs))
            for earlier in state[1]:
                _, now = self.log_probs(earlier, now)
            return self.nll(inputs, targets, now)[0]

        return {
            name: central_difference(losses, each, dnll, step=1e-4)
            for name, each in self.model.params.items()
        }


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("transformer_xl", dict(vocab_size=3, n_layer=1, n_head=1, d_head=2, d_inner=2)),
        ("lstm", dict(vocab_size=3, n_layer=1, d_model=3)),
    ],
)
def test_a_gradient_that_goes_on_into_memory_is_noticed(architecture, options):
    model = Untruncated(implementation(Copy(None), options, architecture=architecture).model)
    found = caught(CHECKS["check_stop_gradient"], model, FIRST)
    assert "memory computed anew" in found.found


# What the models are made of


def read(package):
    model = implementation(package).model
    inputs, targets = tokens((2, 6)), tokens((2, 6), seed=1)
    fwd = model.forward(inputs, targets, model.init_memory(2))
    fwd = model.forward(targets, inputs, fwd.memory)
    return model, np.concatenate([fwd.nll.ravel(), model.backward(fwd).flat])


def test_a_copy_computes_what_npxl_does_in_modules_of_its_own():
    original, expected = read(Copy(None))
    for module in ("npxl.config", "npxl.kernels.relative_attention"):
        model, found = read(Copy(None, anew=(module,)))
        assert type(model) is not type(original)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_a_fault_stays_in_its_copy():
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == "nothing hides later keys")
    original, expected = read(Copy(None))
    model, found = read(mutant.package())
    assert not np.allclose(found, expected)
    again, unchanged = read(Copy(None))
    assert type(again) is type(original) is not type(model)
    np.testing.assert_array_equal(unchanged, expected)


def test_a_line_that_is_not_there_is_an_error():
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == "nothing hides later keys")
    gone = replace(mutant, before="stop = 0")
    with pytest.raises(ValueError, match="not enough values"):
        gone.source()
