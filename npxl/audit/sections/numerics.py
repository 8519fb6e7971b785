"""Numerics: how far float32 is from float64, compiled from plain, all of it from the equations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from npxl.audit.frame import Check, Figure, Progress, Result, Rows, Section, Subject, worst
from npxl.audit.sections.precision import (
    far_positions,
    long_memory,
    picture_of_long_memory,
    picture_of_precision,
    precision,
)
from npxl.audit.twins import beside_their_twins
from npxl.kernels import kernel
from npxl.kernels.exponential import exp
from npxl.layers.dropout import MaskKey
from npxl.models.segment_model import SegmentModel
from npxl.page.pictures import Picture
from npxl.references import reference_mask, reference_of
from npxl.training.optimizers import SGD, Adagrad, Adam, gradient_norm

Array = NDArray[Any]

# compiled against plain


def _compiled(subject: Subject, progress: Progress) -> Iterable[Result]:
    if numba.config.DISABLE_JIT:
        yield Result.nothing("kernels", "NUMBA_DISABLE_JIT is set: nothing is compiled.")
        return
    found = {}
    for n, dtype in enumerate((np.float64, np.float32)):
        progress(n, 2)
        small = subject.small
        model = subject.model(dtype, dropout=small.dropout or 0.25, dropatt=small.dropatt or 0.25)
        with beside_their_twins() as found[np.dtype(dtype).name]:
            _use_everything(model, subject.draw("numerics/compiled"))
    for name in sorted(found["float64"]):
        calls = found["float64"][name].calls
        if not calls:
            yield Result.nothing(name, "Nothing calls it in this configuration.")
            continue
        figures = {
            dtype: Figure(found[dtype][name].apart, _TWINS_ROUNDING[dtype]) for dtype in found
        }
        yield Result(name, figures, f"{calls} calls; relative to the largest number written.")


def _use_everything(model: SegmentModel, draw: np.random.Generator) -> None:
    """Training, reading and moving parameters: whatever calls a kernel."""
    config, memory = model.config, model.init_memory(2)
    for step, tgt_len in enumerate((5, 3)):
        again = config.ext_len if step else 0
        text = draw.integers(0, config.vocab_size, (2, again + tgt_len + 1))
        fwd = model.forward(text[:, :-1], text[:, again + 1 :], memory, MaskKey(1, step))
        gradient, memory = model.backward(fwd).flat, fwd.memory
    reader = model.reader(1)
    for length in (4, 1, 1):
        inputs = draw.integers(0, config.vocab_size, (1, length))
        reader.score(inputs, inputs)
        reader.log_probs(inputs)
    gradient_norm(gradient)
    theta, dtype = model.params.flat.copy(), model.dtype
    for optimizer in (
        Adam(theta.size, dtype, beta1=0.9, beta2=0.999, epsilon=1e-8),
        SGD(theta.size, dtype),
        SGD(theta.size, dtype, momentum=0.9),
        Adagrad(theta.size, dtype),
    ):
        for _ in range(2):
            optimizer.update(theta, gradient, lr=0.01, scale=0.5)


_TWINS_ROUNDING = {"float64": 1e-12, "float32": 1e-5}


# against the reference


def _reference(subject: Subject, progress: Progress) -> Iterable[Result]:
    model, draw = subject.model(), subject.draw("numerics/reference")
    config, memory = model.config, model.init_memory(2)
    forward = reference_of(config)
    theirs: Sequence[Array] = memory.layers
    apart = dict.fromkeys(("losses", "log-probabilities", "memory"), 0.0)
    for step, tgt_len in enumerate(_LENGTHS):
        again = config.ext_len if step else 0
        text = draw.integers(0, config.vocab_size, (2, again + tgt_len + 1))
        inputs, targets = text[:, :-1], text[:, again + 1 :]
        log_p, _ = model.log_probs(inputs, memory)
        plain = forward(model.params, config, inputs, targets, theirs)
        key = MaskKey(subject.seed, step)
        fwd = model.forward(inputs, targets, memory, key)
        masked = forward(model.params, config, inputs, targets, theirs, reference_mask(key, config))
        memory, theirs = fwd.memory, masked.memory
        for name, ours, expected in (
            ("losses", fwd.nll, masked.nll),
            ("log-probabilities", log_p[:, again:], plain.log_probs),
            ("memory", memory.states, np.array(theirs)),
        ):
            apart[name] = worst((apart[name], np.abs(ours - expected).max(initial=0)))
    for name, figure in apart.items():
        detail = (
            f"Segments of {', '.join(map(str, _LENGTHS))} tokens, each side with its own memory."
        )
        yield Result.of(name, figure, 1e-12, detail)


_LENGTHS = (4, 1, 3)


# extreme scores


def _extreme(subject: Subject, progress: Progress) -> Iterable[Result]:
    for dtype in (np.float64, np.float32):
        for what, exaggerate in _EXAGGERATE[subject.config.architecture].items():
            draw = subject.draw(f"numerics/extreme/{what}")
            model = subject.model(dtype, ext_len=0, dropout=0.0, dropatt=0.0)
            text = draw.integers(0, model.config.vocab_size, (2, 9))
            with np.errstate(all="ignore"):
                largest = exaggerate(model, text, draw)
                figures = _survives(model, text)
            size = Figure(largest, at_least=EXTREME / 2)
            yield Result(
                f"{what} in {np.dtype(dtype).name}", {"size": size, **figures},
                "A segment of 4 tokens after one of 4 in memory.",
            )  # fmt: skip


def _exaggerate_logits(model: SegmentModel, text: Array, draw: np.random.Generator) -> float:
    """Biases of the softmaxes in ±1e4."""
    for name in ("softmax.bias", "softmax.cluster_bias"):
        if name in model.params:
            view = model.params[name]
            view[...] = draw.uniform(-1, 1, view.shape)
            view *= EXTREME / np.abs(view).max()
    return float(np.abs(model.params["softmax.bias"]).max())


def _exaggerate_scores(model: SegmentModel, text: Array, draw: np.random.Generator) -> float:
    """Queries so long that the largest scores of attention reach 1e4 in every layer."""
    for n in range(model.config.n_layer):
        for _ in range(2):  # once more when u and v do not count any longer
            size = _largest_scores(model, text)[n]
            model.params[f"layers.{n}.attention.w_q"][...] *= EXTREME / size
    return min(_largest_scores(model, text))


def _exaggerate_gates(model: SegmentModel, text: Array, draw: np.random.Generator) -> float:
    """Biases of all gates in ±1e4: each is open or shut, as far as numbers go."""
    largest = []
    for n in range(model.config.n_layer):
        bias = model.params[f"layers.{n}.bias"]
        bias[...] = draw.uniform(-1, 1, bias.shape)
        bias *= EXTREME / np.abs(bias).max()
        largest.append(float(np.abs(bias).max()))
    return min(largest)


_EXAGGERATE: Mapping[str, Mapping[str, Callable[[Any, Array, np.random.Generator], float]]] = {
    "transformer_xl": {"logits": _exaggerate_logits, "scores": _exaggerate_scores},
    "lstm": {"logits": _exaggerate_logits, "gates": _exaggerate_gates},
}


def _largest_scores(model: SegmentModel, text: Array) -> list[float]:
    """By layer, the largest |A| / √d_head that is a query's largest."""
    fwd = model.forward(text[:, :4], text[:, 1:5], model.init_memory(2))
    attended = [cache.attention.attend for cache in fwd.stack.layers]
    return [float(np.abs(each.largest * each.scale).max()) for each in attended]


def _survives(model: SegmentModel, text: Array) -> dict[str, Figure]:
    """Everything is a number, and probabilities sum to one."""
    first = model.forward(text[:, :4], text[:, 1:5], model.init_memory(2))
    fwd = model.forward(text[:, 4:8], text[:, 5:], first.memory)
    log_p, _ = model.log_probs(text[:, 4:8], first.memory)
    gradient = model.backward(fwd).flat
    total = np.exp(log_p.astype(np.float64)).sum(-1)
    tolerance = 1e-12 if model.dtype == np.float64 else 1e-5
    return {
        "sum − 1": Figure(float(np.abs(total - 1).max()), tolerance),
        "losses not finite": Figure(int((~np.isfinite(fwd.nll)).sum()), 0),
        "log p not finite": Figure(int((~np.isfinite(log_p)).sum()), 0),
        "gradients not finite": Figure(int((~np.isfinite(gradient)).sum()), 0),
    }


EXTREME = 1e4


# exp


@kernel
def _exp_of_each(x: Array, y: Array) -> None:
    for i in range(x.size):
        y[i] = exp(x[i])


def _exponential(subject: Subject, progress: Progress) -> Iterable[Result]:
    for dtype, low, high, tolerance in (
        (np.float32, -87.0, 88.0, 3e-7),
        (np.float64, -700.0, 700.0, 1e-15),
    ):
        x = np.linspace(low, high, _POINTS).astype(dtype)
        y = np.empty_like(x)
        _exp_of_each(x, y)
        exact = np.exp(x.astype(np.float64 if dtype == np.float32 else np.longdouble))
        errors = np.abs(y / exact - 1).astype(np.float64)
        yield Result.of(
            np.dtype(dtype).name, errors.max(), tolerance,
            f"Relative, at {x.size:,} arguments in [{low:g}, {high:g}].", data=(x, errors),
        )  # fmt: skip
    beyond = np.array([-np.inf, -1e4, -88, 88.5, 1e4, np.inf, np.nan], np.float32)
    y = np.empty_like(beyond)
    _exp_of_each(beyond, y)
    wrong = (~(y[:3] < 2e-38)).sum() + (~(y[3:6] > 1e38)).sum() + (~np.isnan(y[6:])).sum()
    yield Result.of(
        "beyond its range", int(wrong), 0, at_least=0,
        detail="Of −∞ … ∞ and NaN in float32: tiny, huge and NaN, and never a wrong number.",
    )  # fmt: skip


_POINTS = 1_000_001


def _pictures(rows: Rows) -> Iterable[Picture]:
    layers = [row.data for row in rows.get("precision", ()) if row.data is not None]
    if layers:
        yield picture_of_precision(np.array(layers))
    for row in rows.get("long-memory", ()):
        if row.data is not None:
            yield picture_of_long_memory(row.data)
    for row in rows.get("exp", ()):
        if row.name == "float32" and row.data is not None:
            yield _picture_of_exp(*row.data)


def _picture_of_exp(x: Array, errors: Array) -> Picture:
    n_bins = 350
    n = len(x) // n_bins * n_bins
    largest = errors[:n].reshape(n_bins, -1).max(axis=1)

    def draw(figure: Any) -> None:
        ax = figure.subplots()
        ax.plot(x[:n].reshape(n_bins, -1).mean(axis=1), largest, lw=0.8)
        ax.axhline(3e-7, color="C1", lw=1, ls="--")
        ax.set(xlabel="x", ylabel="relative error", ylim=(0, 3.3e-7))

    return Picture(
        "The relative error of exp in float32",
        "The largest in each of 350 parts of the range; dashed, what is allowed.",
        f"{n_bins} errors from x = {x[0]:.0f} to {x[n - 1]:.0f}, of {largest.min():.1e} to "
        f"{largest.max():.1e}.",
        draw,
    )


NUMERICS = Section(
    name="numerics",
    title="Numerics",
    proves=(
        "float32 trains what float64 audits: rounding stays rounding in every layer, at every "
        "position, over a memory of 10,000 tokens, and at scores of ±10,000. What is compiled "
        "computes what its source says, and both compute the equations.\n\n"
        r"Errors of float32 are relative to $\epsilon = 2^{-23}$. They are those of a model whose "
        r"weights have standard deviation $1/\sqrt d$, so that sums keep the size of what is "
        "added up."
    ),
    checks=(
        Check(
            "precision",
            r"After layer $n$ the relative error is at most $4 \sqrt n \epsilon$: errors of layers "
            "are independent, and add up as squares. It is no larger late in a text than early.",
            r"e_n = \sqrt{\frac{\sum (h^n_{32} - h^n_{64})^2}{\sum (h^n_{64})^2}}"
            r"\le 4 \sqrt{n} \epsilon",
            precision,
        ),
        Check(
            "compiled",
            "Each kernel, in the calls that training, reading and the optimisers make, writes what "
            "its source writes as plain Python.",
            r"\max |\mathrm{jit}(f)(x) - f(x)| \le \tau \max |f(x)|",
            _compiled,
        ),
        Check(
            "reference",
            "The model computes the equations as the paper writes them, one head, query and key at "
            "a time, or one unit of an LSTM, with dropout and memory.",
            r"A_{ij} = (q_i + u)^\top k_j + (q_i + v)^\top W_{k,R} R_{i-j}",
            _reference,
        ),
        Check(
            "long-memory",
            r"With $K$ up to 10,000 tokens in memory a score's error grows no faster than $K$, as "
            r"that of a sum may, and stays below $5 \cdot 10^{-5}$ nats; probabilities sum to one.",
            r"\max_t |\log p_{32} - \log p_{64}| \le 5 \cdot 10^{-5}, \quad e(K) \sim K^p, "
            r"\quad p \le 1",
            long_memory,
        ),
        Check(
            "positions",
            "Angles are computed in float64, so that far distances are encoded as exactly as near "
            "ones.",
            r"|\mathrm{fl}_{32}(\sin p\omega) - \sin p\omega| \le 2^{-25}",
            far_positions,
        ),
        Check(
            "extreme",
            r"Logits, and scores or gates, of $\pm 10^4$ overflow nothing: losses and gradients "
            "are finite, and probabilities sum to one.",
            r"\log p_j = (a_j - \max a) - \log \sum_k e^{a_k - \max a}",
            _extreme,
        ),
        Check(
            "exp",
            r"The kernels' own $e^x$ is right to $3 \cdot 10^{-7}$ over its whole range.",
            r"e^x = 2^n e^r, \quad x = n \ln 2 + r, \quad |r| \le \tfrac{1}{2} \ln 2",
            _exponential,
        ),
    ),
    pictures=_pictures,
)
