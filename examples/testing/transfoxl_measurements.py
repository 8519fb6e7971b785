"""What Hugging Face's TransfoXL 4.35.2 does that no check asks, each measured."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

from transfoxl_deviations import CHOICE, FAULT, Deviation, small_model

MEASURED: list[Deviation] = []


def measured(
    name: str, kind: str, *, expected: str, cause: str, remedy: str, input: str
) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Put a deviation on the list, with the function that says what was measured."""

    def listed(measure: Callable[[], str]) -> Callable[[], str]:
        MEASURED.append(
            Deviation(name, kind, expected, cause, remedy, input=input, measure=measure)
        )
        return measure

    return listed


def _tokens(*rows: list[int]) -> Any:
    import torch

    return torch.tensor(rows)


def _error(call: Callable[[], Any]) -> str:
    """What an exception says; nothing when there is none."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@measured(
    "float64 is refused",
    FAULT,
    expected="Precision is the caller's choice, and float64 the one to check gradients in.",
    cause="Scores are cast to float32 before they are masked with the smallest float64, which "
    "float32 does not have. Where nothing is masked, it works.",
    remedy="None: gradients can be checked in float32 only, to some per cent.",
    input="`model.double()`, one stream of two tokens",
)
def float64() -> str:
    model = small_model(mem_len=0).double()
    alone = model(_tokens([1])).prediction_scores.dtype
    return f"one token: {alone}; two tokens: {_error(lambda: model(_tokens([1, 2])))}"


@measured(
    "In bfloat16 and float16, far distances coincide",
    FAULT,
    expected="Each distance has its own encoding R_(i−j) (section 3.3).",
    cause="Distances are counted in the precision of the parameters, and bfloat16 has no odd "
    "numbers beyond 256, float16 none beyond 2,048.",
    remedy="Keep the model in float32 under `torch.autocast`.",
    input="`model.bfloat16()`, one stream of 258 tokens; 2,050 in float16",
)
def half_precision() -> str:
    import torch

    found = []
    for dtype in (torch.bfloat16, torch.float16):
        counted: dict[int, int] = {}

        def count(module: Any, args: Any, counted: dict[int, int] = counted) -> None:
            counted[len(args[0])] = len(args[0].unique())

        model = small_model(mem_len=0).to(dtype)
        model.transformer.pos_emb.register_forward_pre_hook(count)
        for n_tokens in (258, 2050):
            model.transformer(torch.zeros(1, n_tokens, dtype=torch.long))
        found.append(
            f"{str(dtype).removeprefix('torch.')}: "
            + " and ".join(f"{seen} distances of {n}" for n, seen in counted.items())
        )
    return "; ".join(found)


@measured(
    "The mean leaves out tokens that are predicted with certainty",
    FAULT,
    expected="The loss is the mean over all tokens that have labels.",
    cause="It is the mean of the losses that are not 0, to leave out labels of −100; a loss "
    "that rounds to 0 is left out with them.",
    remedy="`losses.sum()` over the number of labels.",
    input="one stream of two tokens, the second one predicted with probability 1",
)
def mean_of_some() -> str:
    import torch

    model = small_model()
    with torch.no_grad():
        model.crit.out_layers[0].bias[3] = 200.0
    certain, half = _tokens([3, 3]), _tokens([3, 3, 1])
    out, other = model(certain, labels=certain), model(half, labels=half)
    losses = [round(each, 1) + 0.0 for each in other.losses[0].tolist()]
    return (
        f"`loss` {out.loss.item()} for losses {out.losses[0].abs().tolist()}; "
        f"{other.loss.item():.1f} for losses {losses}"
    )


@measured(
    "The first token of every segment is never scored",
    CHOICE,
    expected="The loss is over all tokens of a segment, the first one predicted from memory "
    "(section 3.2).",
    cause="Labels are shifted inside a segment, so that T tokens give T − 1 losses, whatever "
    "the memory. In a stream cut into segments of T, one token of T is never learnt.",
    remedy="Feed T + 1 tokens for the losses and T for `mems`; or gather from `prediction_scores`.",
    input="one stream of two tokens, in segments of 1, 1 or of 2",
)
def first_token() -> str:
    text = _tokens([1, 2])
    model = small_model()
    at_once = model(text, labels=text).losses.numel()
    one = _error(lambda: model(text[:, :1], labels=text[:, :1]))
    return f"in one segment {at_once} loss; a segment of one token: {one}"


@measured(
    "With clusters, tokens outside of the vocabulary are accepted",
    FAULT,
    expected="An error, as without clusters.",
    cause="A token that is in no cluster keeps the zeros that its embedding and its loss begin "
    "as. The documentation of `labels` goes to `vocab_size`, one too far.",
    remedy="Check tokens before.",
    input="one stream of two tokens, the second one `vocab_size`",
)
def outside() -> str:
    outside = _tokens([1, 7])
    plain, clusters = small_model(), small_model(cutoffs=[2, 5], div_val=2)
    refused = _error(lambda: plain(outside))
    scores = clusters(outside).prediction_scores
    loss = clusters(_tokens([1, 2]), labels=outside).losses[0, 0].item()
    return (
        f"without clusters {refused}; with clusters {tuple(scores.shape)[1]} predictions, and as "
        f"a label a loss of {loss}"
    )


@measured(
    "A cluster may be empty, and still has its share of probability",
    FAULT,
    expected="Probabilities of all symbols add up to 1.",
    cause="A cut-off at `vocab_size` makes a last cluster of no symbols, whose column is in "
    "the first softmax.",
    remedy="Cut-offs below `vocab_size`.",
    input="`cutoffs=[7]` of 7 symbols, one stream of one token",
)
def empty_cluster() -> str:
    total = small_model(cutoffs=[7])(_tokens([1])).prediction_scores.exp().sum().item()
    return f"probabilities add up to {total:.2f}"


@measured(
    "With clusters, `crit.log_prob` fails",
    FAULT,
    expected="Its documentation: log-probabilities of shape (N, n_classes).",
    cause="It indexes columns with a pair in place of a slice, and counts clusters from the end, "
    "as `forward` does not.",
    remedy="`prediction_scores` of a call without labels.",
    input="one hidden state",
)
def log_prob() -> str:
    model = small_model(vocab_size=2, cutoffs=[1])
    hidden = model.transformer(_tokens([1])).last_hidden_state[0]
    return _error(lambda: model.crit.log_prob(hidden))


@measured(
    "A memory keeps the whole segment alive",
    FAULT,
    expected="M states of each layer are kept (section 3.2).",
    cause="`mems` are views of the last M rows of memory and segment put together.",
    remedy="`mems = [each.clone() for each in mems]`.",
    input="`mem_len=1`, one stream of two tokens",
)
def storage() -> str:
    (memory,) = small_model(mem_len=1)(_tokens([1, 2])).mems
    return (
        f"{memory.numel()} numbers are kept in a storage of "
        f"{memory.untyped_storage().nbytes() // memory.element_size()}"
    )


@measured(
    "A changed memory length is not saved",
    FAULT,
    expected="What is saved and loaded again predicts the same.",
    cause="`reset_memory_length` changes the module, not its configuration, which is saved.",
    remedy="Set `model.config.mem_len` as well.",
    input="`reset_memory_length(5)`, `save_pretrained`, `from_pretrained`",
)
def saved_memory_length() -> str:
    model = small_model()
    model.reset_memory_length(5)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        loaded = type(model).from_pretrained(folder)
    return f"`mem_len` {model.transformer.mem_len} becomes {loaded.transformer.mem_len}"


@measured(
    "Prompts of different lengths cannot be continued side by side",
    CHOICE,
    expected="The paper does not pad.",
    cause="There is no mask of padding: what a batch is filled up with is read like any token.",
    remedy="One prompt at a time, or prompts of one length.",
    input="`generate` with an `attention_mask`, one stream of two tokens",
)
def padding() -> str:
    import torch

    prompt = _tokens([0, 1])
    options = dict(attention_mask=torch.tensor([[0, 1]]), max_new_tokens=1, pad_token_id=0)
    return _error(lambda: small_model().generate(prompt, **options)).split(" (note")[0]


@measured(
    "Symbol 0 ends a text, and cannot be told not to",
    CHOICE,
    expected="Nothing: a vocabulary has an end of text, or not.",
    cause="`eos_token_id` is 0 unless set, the `<eos>` of WikiText-103; `None` asks for the "
    "default.",
    remedy="`eos_token_id=-1` in the GenerationConfig.",
    input="a model that always predicts 0, one stream of one token, `max_new_tokens=3`",
)
def end_of_text() -> str:
    import torch

    model = small_model()
    with torch.no_grad():
        model.crit.out_layers[0].bias[0] = 200.0

    def continued(**options: Any) -> int:
        made = model.generate(_tokens([1]), max_new_tokens=3, pad_token_id=6, **options)
        return int(made.shape[1]) - 1

    return (
        f"{continued()} token with the default, {continued(eos_token_id=None)} with None, "
        f"{continued(eos_token_id=-1)} with −1"
    )


@measured(
    "`ext_len` and `adaptive` are accepted and ignored",
    CHOICE,
    expected="`ext_len` tokens are read again by the next segment and left out of memory; "
    "`adaptive=False` is an ordinary softmax.",
    cause="No code reads them. (`attn_type` 1 to 3 and `sample_softmax` > 0, for which there is "
    "no code either, are refused.)",
    remedy="`cutoffs=[]` is what `adaptive=False` should be.",
    input="`ext_len=1` or `adaptive=False`",
)
def ignored() -> str:
    text, clusters = _tokens([1, 2]), small_model(cutoffs=[2, 5])
    extended = small_model(ext_len=1)(text).mems[0].equal(small_model()(text).mems[0])
    adaptive = small_model(cutoffs=[2, 5], adaptive=False)(text).prediction_scores
    return (
        f"the same memory with `ext_len=1`: {extended}; the same clusters with "
        f"`adaptive=False`: {adaptive.equal(clusters(text).prediction_scores)}"
    )
