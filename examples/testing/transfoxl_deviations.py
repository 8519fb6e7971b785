"""Where Hugging Face's TransfoXL 4.35.2 is not the Transformer-XL of the paper, by npxl's checks.

test_transfoxl.py expects the checks named here to fail; transfoxl_audit.py runs them, measures what
no check asks (transfoxl_measurements.py), and writes docs/audits/transfoxl.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

FAULT, CHOICE = "fault", "choice"

SMALL: Mapping[str, Any] = dict(
    vocab_size=7, cutoffs=[], div_val=1, n_layer=1, n_head=2, d_model=8, d_embed=8, d_head=4,
    d_inner=12, mem_len=3, same_length=False, clamp_len=-1, dropout=0.0,
    init_std=0.4, proj_init_std=0.4,  # as small as usual, effects would drown in rounding
)  # fmt: skip
"""Options of TransfoXLConfig, of which a deviation changes as few as it can."""


def small_model(**options: Any) -> Any:
    """A TransfoXLLMHeadModel of SMALL and these options, with the parameters of seed 0."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own use of torch
        from transformers import TransfoXLConfig, TransfoXLLMHeadModel

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return TransfoXLLMHeadModel(TransfoXLConfig(**{**SMALL, **options})).eval()


@dataclass(frozen=True)
class Deviation:
    """One way in which it is not what the paper, or its own documentation, says.

    Attributes
    ----------
    name
        What it does, in one line.
    kind
        FAULT, or CHOICE where the paper leaves it open or it may be wanted.
    expected
        What paper or documentation say.
    cause
        Why it is otherwise here.
    remedy
        What a caller can do.
    options
        Of a small model that shows it.
    checks
        Those that find it, the first one to be shown.
    where
        Whether a model of these options, all of them, has it.
    input, measure
        Where no check finds it, or not all of it: the smallest input, and what makes a sentence of
        what it gives.
    """

    name: str
    kind: str
    expected: str
    cause: str
    remedy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    where: Callable[[Mapping[str, Any]], bool] = lambda options: True
    input: str = ""
    measure: Callable[[], str] | None = None


def _overwritten() -> str:
    import torch

    tokens, labels = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[-100, -100], [3, 4]])
    losses = small_model()(tokens, labels=labels).losses[:, 0].tolist()
    return (
        f"labels [[−100, −100], [3, 4]] become {labels.tolist()}, with losses "
        f"{', '.join(f'{each:.2f}' for each in losses)}"
    ).replace("-", "−")


def expected_failures(**options: Any) -> dict[str, str]:
    """By name of a check, why it fails on `small_model(**options)`."""
    found = [each for each in BY_CHECKS if each.where({**SMALL, **options})]
    return {check: each.name for each in reversed(found) for check in each.checks}


BY_CHECKS = (
    Deviation(
        "Without memory, `same_length` shows every token the future",
        FAULT,
        "p(x) = ∏ p(x_t | x_<t) (section 3): no prediction depends on later tokens.",
        "With `mem_len` 0 the mask of `same_length` hides every key. Hidden scores become one "
        "finite number, and the softmax of equal numbers is uniform, over later keys too.",
        "`same_length=False` where `mem_len` is 0.",
        options=dict(same_length=True, mem_len=0),
        checks=("check_causality", "check_exact_reach", "check_window", "check_reference"),
        where=lambda options: options["same_length"] and options["mem_len"] == 0,
    ),
    Deviation(
        "`same_length` hides the oldest cached state from every query",
        FAULT,
        "A segment attends to [SG(memory) ∘ h] (section 3.2): M cached states and, beside them, "
        "its own key. NVIDIA's code shows M + 1 keys a query.",
        "A query sees M keys in all, its own included, so that the oldest state is computed, kept "
        "and never read; with `mem_len=1` no memory is read at all. The original code does the "
        "same.",
        "For a window of W keys, `mem_len=W`. Or declare what it does: "
        "`transfoxl(model, window=mem_len)`.",
        options=dict(same_length=True, mem_len=1),
        checks=("check_window", "check_exact_reach", "check_reference"),
        where=lambda options: options["same_length"] and options["mem_len"] > 0,
    ),
    Deviation(
        "The first segment attends to a memory of zeros",
        CHOICE,
        "Nothing precedes the first segment. The paper's PyTorch code begins with an empty memory, "
        "its TensorFlow code with zeros, as here.",
        "The zeros are not masked: the first token gives some of its attention to `mem_len` "
        "vectors that stand for no token.",
        "Begin with `mems=[torch.zeros(0, batch_size, d_model)] * n_layer`. Or declare it: "
        '`transfoxl(model, initial_memory="zeros")`.',
        options=dict(mem_len=1),
        checks=("check_empty_start", "check_attention_averages", "check_reference"),
        where=lambda options: options["mem_len"] > (1 if options["same_length"] else 0),
    ),
    Deviation(
        "Without `same_length`, scores depend on how a text is cut from the first token on",
        FAULT,
        "As long as nothing is forgotten, a token sees the same keys however the text is cut "
        "(figure 2).",
        "Of the zeros a token sees those that are still in memory when its segment begins: how "
        "many depends on the segmentation, on `mem_len`, and in `generate` on how long the prompt "
        "is.",
        "An empty memory to begin with, as above, or `same_length`.",
        options=dict(mem_len=1),
        checks=(
            "check_segmentation_invariance",
            "check_incremental",
            "check_longer_memory",
            "check_generation",
        ),
        where=lambda options: options["mem_len"] > 0 and not options["same_length"],
    ),
    Deviation(
        "With clusters, `losses` are not in reading order",
        FAULT,
        "Its documentation: `losses` of shape (batch_size, sequence_length − 1), not reduced.",
        "They are the right numbers cluster by cluster, reshaped as if they were in order; the "
        "mean is right. Labels of −100 belong to no cluster: their zeros come last.",
        "`model.crit.keep_order = True`.",
        options=dict(vocab_size=2, cutoffs=[1]),
        checks=("check_reading_order", "check_ignored_targets"),
        where=lambda options: bool(options["cutoffs"]),
    ),
    Deviation(
        "A first row of nothing but −100 is given a label, in the caller's array",
        FAULT,
        "Its documentation: labels of −100 are ignored, the loss is computed for the others.",
        "Lest the mean be NaN, `eos_token_id` is written over the first label of the first row "
        "that could be scored, whether or not other rows have labels; when that is None, it is a "
        "TypeError.",
        "A first row that has a label; or losses gathered from `prediction_scores`.",
        checks=("check_ignored_targets",),
        measure=_overwritten,
    ),
)
