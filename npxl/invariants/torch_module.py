"""Any module of torch as the checks take it: what it reads, in a few lines of its owner's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npxl.errors import NpxlError, described
from npxl.invariants.protocol import Implementation, require_declarations

Array = NDArray[Any]
Module = Any
Tensor = Any
State = Any

TOLERANCE = {"torch.float64": 1e-11, "torch.float32": 1e-4}
"""Rounding in log-probabilities of a few layers, by precision of the parameters."""


class TorchModule:
    """A module of torch that scores segments, with gradients by torch's autograd.

    Scores are computed with autograd on, so that a state remembers what it was computed from
    unless the module itself detaches it: a forgotten `detach` shows up in the gradients.

    Arrays are copied on the way in and out, but for the parameters.  So `check_memory_is_constant`
    shows that reading changes no state, but not that states share no storage with inputs, scores or
    other states: writing to the copies reaches none of them.

    Parameters with requires_grad = False, such as a table of sinusoids or a frozen embedding, are
    constants: `parameters` and `gradients` leave them out.

    Parameters
    ----------
    module
        A torch.nn.Module on the CPU.  With parameters in float64 (`module.double()`) the checks
        see a thousand times more than in float32.
    forward
        (inputs, state) ↦ (log p, state): of integers [B, T] the log-probabilities [B, T, V] of
        what follows each, and the state for the next segment.
    start
        batch_size ↦ the state before the first segment.
    vocab_size, n_layer, mem_len, window
        As `Implementation` says.
    nll
        (inputs, targets, state) ↦ (losses, state): the module's own losses [B, T] in reading
        order; None: what `forward` gives for the targets.
    memory
        state ↦ the cached hidden states [n_layer, B, m, d]; None: not looked at.
    select
        (state, rows) ↦ the state of some of the streams; None: streams stay together.
    with_mem_len
        mem_len ↦ the same parameters, adapted with another memory length; None: it is fixed.
    generate
        (prompt [K], n_tokens, seed) ↦ (tokens [n], log p [n]); None: does not generate.
    reference
        () ↦ another implementation with the same parameters as now; None: there is none.
    dropout
        Whether the module drops anything in training mode.
    tolerance
        The largest difference that is rounding; None: 1e-11 in float64 and 1e-4 in float32.
    **declarations
        What else it declares, such as ``initial_memory="zeros"`` or ``ignore_index=-100``: names
        of `npxl.invariants.protocol.DECLARATIONS`.

    Raises
    ------
    NpxlError
        When torch is not installed, and when the module is none, is on another device than the
        CPU or has parameters of another precision than float32 or float64; when something is
        declared that is no declaration.
    """

    def __init__(
        self,
        module: Module,
        forward: Callable[[Tensor, State], tuple[Tensor, State]],
        start: Callable[[int], State],
        *,
        vocab_size: int,
        n_layer: int,
        mem_len: int | None,
        window: int | None = None,
        nll: Callable[[Tensor, Tensor, State], tuple[Tensor, State]] | None = None,
        memory: Callable[[State], Tensor] | None = None,
        select: Callable[[State, Sequence[int]], State] | None = None,
        with_mem_len: Callable[[int], Any] | None = None,
        generate: Callable[[Array, int, int], tuple[Array, Array]] | None = None,
        dropout: bool = False,
        tolerance: float | None = None,
        reference: Callable[[], Implementation] | None = None,
        **declarations: Any,
    ) -> None:
        self._torch = _torch()
        precision = self._checked(module)
        require_declarations(declarations)
        self.module, self._forward, self.start, self._nll = module, forward, start, nll
        self.vocab_size, self.n_layer = vocab_size, n_layer
        self.mem_len, self.window = mem_len, window
        self.tolerance = TOLERANCE[precision] if tolerance is None else tolerance
        self.select, self.with_mem_len, self.generate = select, with_mem_len, generate
        self.reference = reference
        self.memory = None if memory is None else lambda state: _array(memory(state))
        self.train = self._train if dropout else None
        self._seed: int | None = None  # of dropout; None: there is none
        for name, value in declarations.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({type(self.module).__name__}, n_layer {self.n_layer}, "
            f"mem_len {self.mem_len}, window {self.window})"
        )

    def log_probs(self, inputs: Array, state: State) -> tuple[Array, State]:
        """log p [B, T, V] after each of the inputs."""
        with self._reading():
            log_p, state = self._forward(self._torch.tensor(inputs), state)
        return _array(log_p), state

    def nll(self, inputs: Array, targets: Array, state: State) -> tuple[Array, State]:
        """Losses [B, T]."""
        losses, state = self._losses(inputs, targets, state)
        return _array(losses), state

    def parameters(self) -> dict[str, Array]:
        """Views of the parameters that learn, those that are tied under one name."""
        return {name: each.detach().numpy() for name, each in self._learned().items()}

    def gradients(
        self, inputs: Array, targets: Array, state: State, dnll: Array
    ) -> Mapping[str, Array]:
        """What autograd makes of Σ dnll · nll; zeros where it finds no way."""
        parameters = self._learned()
        losses, _ = self._losses(inputs, targets, state)
        gradients = self._torch.autograd.grad(
            (losses * self._torch.tensor(dnll, dtype=losses.dtype)).sum(),
            list(parameters.values()),
            retain_graph=True,  # the state's graph, if it has one, may be asked again
            allow_unused=True,
        )
        return {
            name: np.zeros(tuple(parameter.shape)) if gradient is None else _array(gradient)
            for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True)
        }

    def _learned(self) -> dict[str, Tensor]:
        """The parameters that are no constants."""
        named = self.module.named_parameters()
        learned = {name: each for name, each in named if each.requires_grad}
        if not learned:
            raise NpxlError(
                "module has nothing to learn, since no parameter has requires_grad = True: call "
                "module.requires_grad_(), or leave out the checks that need parameters."
            )
        return learned

    def _train(self, seed: int, first_stream: int = 0) -> TorchModule:
        """In training mode, with torch's generator seeded before each call."""
        training = copy.copy(self)
        training._seed = seed
        return training

    def _losses(self, inputs: Array, targets: Array, state: State) -> tuple[Tensor, State]:
        inputs, targets = self._torch.tensor(inputs), self._torch.tensor(targets)
        with self._reading():
            if self._nll is not None:
                return self._nll(inputs, targets, state)
            log_p, state = self._forward(inputs, state)  # [B, E+T, V]
        log_p = log_p[:, log_p.shape[1] - targets.shape[1] :]
        return -log_p.gather(-1, targets[..., None])[..., 0], state

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Training mode and seed for one call, and the module and torch as they were after it."""
        modes = [(each, each.training) for each in self.module.modules()]
        with self._torch.random.fork_rng(devices=[]), self._torch.enable_grad():
            self.module.train(self._seed is not None)
            if self._seed is not None:
                self._torch.manual_seed(self._seed)
            try:
                yield
            finally:
                for each, mode in modes:
                    each.training = mode

    def _checked(self, module: Module) -> str:
        """The precision of the parameters, if the checks can work with them."""
        if not isinstance(module, self._torch.nn.Module):
            raise NpxlError(f"module is {described(module)}, but it must be a torch.nn.Module.")
        parameters = list(module.parameters())
        if not parameters:
            raise NpxlError("module has no parameters: pass the torch.nn.Module that has them.")
        devices = {parameter.device.type for parameter in parameters}
        if devices != {"cpu"}:
            raise NpxlError(
                f"module has parameters on {' and '.join(sorted(devices))}, but the checks write "
                "to them: move it with module.cpu()."
            )
        precisions = {str(parameter.dtype) for parameter in parameters}
        if len(precisions) > 1 or not precisions <= set(TOLERANCE):
            raise NpxlError(
                f"module has parameters of {' and '.join(sorted(precisions))}, but they must be "
                "all float64 or all float32: convert it with module.double() or module.float()."
            )
        return precisions.pop()


def _array(tensor: Tensor) -> Array:
    array: Array = tensor.detach().numpy().copy()
    return array


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise NpxlError(
            "A module of torch is checked by torch, which is not installed: "
            "pip install 'npxl[torch]'."
        ) from error
    return torch
