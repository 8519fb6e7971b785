"""What the checks ask of an implementation of Transformer-XL or an LSTM, whoever wrote it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

from numpy.typing import NDArray

from npxl.config.checks import checked_int
from npxl.errors import NpxlError, described

Array = NDArray[Any]
State = Any
"""What an implementation remembers of B streams.  The checks never look into it."""


class Implementation(Protocol):
    """A model that reads a batch of streams, segment by segment, without dropout.

    Arrays go in and come out as NumPy's.  A state is a value: to read with it changes nothing in
    it, so that a second segment can be read from the same state.

    Attributes
    ----------
    vocab_size
        Symbols V; a token is one of 0 … V − 1.
    n_layer
        Layers N, each of which reads a memory of its own.
    mem_len
        Positions M that a state keeps at most; None: whatever was read is in it, as in the state
        of an LSTM.
    window
        Keys W that a query sees at most, itself included; None: all of the state and the segment.
    tolerance
        The largest difference of two log-probabilities that is rounding: about 1e-12 in float64,
        1e-4 in float32.
    """

    vocab_size: int
    n_layer: int
    mem_len: int | None
    window: int | None
    tolerance: float

    def start(self, batch_size: int) -> State:
        """The state of B streams of which nothing has been read."""

    def log_probs(self, inputs: Array, state: State) -> tuple[Array, State]:
        """log p of every symbol after each of the inputs, and the state for the next segment.

        Parameters
        ----------
        inputs
            [B, E+T] int64: the segment, after E tokens that are read again; E is 0 unless the
            implementation has an `ext_len`.
        state
            From `start`, or from the segment before.

        Returns
        -------
        tuple
            Log-probabilities [B, E+T, V] in nats, and the new state.
        """


def require_implementation(given: Any) -> None:
    """NpxlError where an implementation lacks what all have, or has nonsense in its place."""
    lacking = [
        name
        for name in (*Implementation.__annotations__, "start", "log_probs")
        if not hasattr(given, name)
    ]
    if lacking:
        raise NpxlError(
            f"What is to be checked is {described(given)}, which has no {', '.join(lacking)}: "
            "npxl.invariants.protocol.Implementation says what it needs."
        )
    checked_int("vocab_size", given.vocab_size, minimum=1)
    checked_int("n_layer", given.n_layer, minimum=1)
    checked_int("mem_len", given.mem_len, minimum=0, optional=True)
    checked_int("window", given.window, minimum=1, optional=True)
    tolerance = given.tolerance
    if not (isinstance(tolerance, Real) and 0 <= float(tolerance) < math.inf):
        raise NpxlError(
            f"tolerance is {tolerance!r}, but it must be what rounding changes log-probabilities "
            "by, such as 1e-12 in float64 and 1e-4 in float32."
        )


DECLARATIONS: Mapping[str, Any] = {
    "encodes_distances": True,
    "averages": True,
    "initial_memory": "empty",
    "ext_len": 0,
    "ignore_index": None,
    "masks_by_stream": False,
    "bitwise": True,
}
"""What an implementation may further declare, as attributes, and what holds if it does not.

encodes_distances: attention knows how far a key is from its query, not where either of them is.
False for encodings of places, whose scores depend on where a text was cut.

averages: what a layer takes from its keys is an average, as attention's weights make it.  False
for models that are something else.

initial_memory: "empty", or "zeros" when `start` gives `mem_len` vectors of zeros that the first
segment attends to.

ext_len: tokens E at a segment's end that the state leaves out, since the next segment reads them
again.

ignore_index: the target whose loss and gradient are 0; None when there is no such target.

masks_by_stream: dropout's masks belong to a stream's number and not to its place in the batch, so
that `train(seed, first_stream)` draws the same for a part of a batch.

bitwise: a score that does not depend on a token does not change in a bit when the token does.
False where tokens decide on the arithmetic, such as embeddings that are projected cluster by
cluster, in products of as many rows as the cluster has tokens: what is independent may then change
by rounding.
"""


INITIAL_MEMORIES = ("empty", "zeros")


def require_declarations(declarations: Mapping[str, Any]) -> None:
    """NpxlError where something else is declared than there is to declare."""
    for name, value in declarations.items():
        if name not in DECLARATIONS:
            raise NpxlError(
                f"{name} is declared, but what can be declared is {', '.join(DECLARATIONS)}."
            )
        if name == "initial_memory" and value not in INITIAL_MEMORIES:
            raise NpxlError(
                f"initial_memory is {value!r}, but it must be {' or '.join(INITIAL_MEMORIES)}."
            )


class Losses(Implementation, Protocol):
    """Capability "losses": the losses that training averages."""

    def nll(self, inputs: Array, targets: Array, state: State) -> tuple[Array, State]:
        """−log p of the targets [B, T] of the last T inputs: [B, T] in nats, in reading order."""


class HasParameters(Implementation, Protocol):
    """Capability "parameters": they can be changed."""

    def parameters(self) -> Mapping[str, Array]:
        """All parameters, each once, as arrays that can be written to.

        What is written there is what the implementation computes with from then on.
        """


class Gradients(Losses, HasParameters, Protocol):
    """Capability "gradients": those that training follows, whatever computes them."""

    def gradients(
        self, inputs: Array, targets: Array, state: State, dnll: Array
    ) -> Mapping[str, Array]:
        """Gradient of Σ dnll · nll, for every name of `parameters`; dnll [B, T] of their type."""


class ShowsEmbeddings(Implementation, Protocol):
    """Capability "embeddings": what the first layer reads can be looked at."""

    def embeddings(self, inputs: Array, state: State) -> Array:
        """[B, q, d]: what the first layer reads of the inputs, after dropout if there is some."""


class MemoryStates(Implementation, Protocol):
    """Capability "memory": the cached hidden states can be looked at."""

    def memory(self, state: State) -> Array:
        """[N, B, m, d]: by layer, what its keys of earlier segments are computed from.

        A copy, unless nobody can write to it: what is written there must not reach the state.
        """


class Selects(Implementation, Protocol):
    """Capability "select": streams can leave a batch and change places in it."""

    def select(self, state: State, rows: Sequence[int]) -> State:
        """The state of some of the streams, in the given order."""


class Resizes(Implementation, Protocol):
    """Capability "mem_len": the memory's length can be changed without training anew."""

    def with_mem_len(self, mem_len: int) -> Implementation:
        """The same parameters with another memory length, which goes on with this one's states.

        It declares the window that it then has, and has the same capabilities.
        """


class HasReference(Implementation, Protocol):
    """Capability "reference": somebody else computes the same function."""

    def reference(self) -> Implementation:
        """Another implementation, with the same parameters as now, that is trusted.

        If it has the capability "dropout", one seed draws the same masks in both.
        """


class Generates(Implementation, Protocol):
    """Capability "generation": continues a text."""

    def generate(self, prompt: Array, n_tokens: int, seed: int) -> tuple[Array, Array]:
        """Tokens [n] drawn after the prompt [K], and log p [n] of each under the model, in nats."""


class Trains(Losses, Protocol):
    """Capability "dropout": reads as in training."""

    def train(self, seed: int, first_stream: int = 0) -> Losses:
        """The same parameters with dropout, whose masks depend on the seed alone.

        It is `nll` that then has dropout, and `gradients` if there are any.  Row b of a batch is
        stream first_stream + b.
        """


class LearnsWithDropout(Gradients, Protocol):
    """Capabilities "gradients" and "dropout"."""

    def train(self, seed: int, first_stream: int = 0) -> Gradients:
        """As `Trains.train`."""


CAPABILITIES: Mapping[str, tuple[str, ...]] = {
    "losses": ("nll",),
    "parameters": ("parameters",),
    "gradients": ("nll", "parameters", "gradients"),
    "embeddings": ("embeddings",),
    "memory": ("memory",),
    "select": ("select",),
    "mem_len": ("with_mem_len",),
    "reference": ("reference",),
    "generation": ("generate",),
    "dropout": ("train",),
}
"""The methods and attributes of each capability; one that is missing or None is not there."""


def capabilities(implementation: Implementation) -> frozenset[str]:
    """Names of the capabilities that an implementation has."""
    return frozenset(
        name
        for name, members in CAPABILITIES.items()
        if all(getattr(implementation, member, None) is not None for member in members)
    )


def offering(implementation: Implementation, capability: str) -> Any | None:
    """The implementation, if it has the capability."""
    return implementation if capability in capabilities(implementation) else None


def declared(implementation: Implementation, name: str) -> Any:
    """What an implementation declares, or what holds when it declares nothing.

    Raises
    ------
    NpxlError
        When it declares something that is not there.
    """
    value = getattr(implementation, name, DECLARATIONS[name])
    require_declarations({name: value})
    return value
