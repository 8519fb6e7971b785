"""Faults of an LSTM: in its gates, in what it hands on, and in the way back through time."""

from functools import partial

from broken.mutant import Mutant

LSTMMutant = partial(Mutant, architecture="lstm")
FORWARD, BACKWARD = "kernels.lstm:_step_of_one", "kernels.lstm:lstm_steps_backward"
STACK = "models.lstm:LSTM.stack_forward"
CELL = "cell[k] = gates[d + k] * before[k] + gates[k] * gates[3 * d + k]"
NEXT_STATE = "return Memory(np.stack(states))"
OF_W_H = "linear_backward_weight(d_a, cache.hidden[:-1, :n_streams], grads.w_h)"

MUTANTS = (
    # What a step makes of the one before
    LSTMMutant(
        "an LSTM's forget gate forgets what it should keep",
        "recurrence",
        FORWARD,
        CELL,
        "cell[k] = (1 - gates[d + k]) * before[k] + gates[k] * gates[3 * d + k]",
        ("check_reference", "check_gradients"),
    ),
    LSTMMutant(
        "an LSTM's cell forgets by its output gate",
        "recurrence",
        FORWARD,
        CELL,
        "cell[k] = gates[2 * d + k] * before[k] + gates[k] * gates[3 * d + k]",
        ("check_reference", "check_gradients"),
    ),
    LSTMMutant(
        "an LSTM's gates are taken in another order, in both passes",
        "recurrence",
        "models.lstm:LSTM.layer",
        'return LSTMWeights(*(params[f"layers.{n}.{name}"] for name in LSTMWeights._fields))',
        'return LSTMWeights(*(params[f"layers.{n}.{name}"][::-1] for name in LSTMWeights._fields))',
        ("check_reference",),
    ),
    LSTMMutant(
        "an LSTM's cell goes out as it is, without tanh",
        "recurrence",
        FORWARD,
        "squashed[k] = tanh(cell[k])",
        "squashed[k] = cell[k]",
        ("check_reference", "check_gradients"),
    ),
    LSTMMutant(
        "an LSTM's gates are quotients of exponentials that overflow",
        "numerics",
        FORWARD,
        "gates[k] = sigmoid(gates[k])",
        "gates[k] = np.exp(gates[k]) / (1 + np.exp(gates[k]))",
        ("check_large_scores",),
    ),
    LSTMMutant(
        "an LSTM's streams go on with the first stream's cell",
        "batch",
        "kernels.lstm:lstm_steps_forward",
        "_step_of_one(gates[t, b], cells[t, b], cells[t + 1, b], squashed[t, b])",
        "_step_of_one(gates[t, b], cells[t, 0], cells[t + 1, b], squashed[t, b])",
        ("check_batch_equivariance",),
    ),
    # What a segment leaves to the next one
    LSTMMutant(
        "an LSTM's state stays what it was in the beginning",
        "recurrence",
        "models.lstm:LSTM.next_memory",
        NEXT_STATE,
        "return memory",
        ("check_segmentation_invariance", "check_exact_reach"),
    ),
    LSTMMutant(
        "an LSTM's cell begins anew with every segment",
        "recurrence",
        "layers.lstm:lstm_forward",
        "hidden[0, :n_streams], cells[0] = state[:, 0], state[:, 1]",
        "hidden[0, :n_streams], cells[0] = state[:, 0], 0",
        ("check_segmentation_invariance", "check_incremental"),
    ),
    LSTMMutant(
        "an LSTM's hidden state and its cell change places between segments",
        "recurrence",
        "layers.lstm:LSTMCache.state",
        "return np.stack([self.hidden[-1, : len(last)], last], axis=1)",
        "return np.stack([last, self.hidden[-1, : len(last)]], axis=1)",
        ("check_segmentation_invariance", "check_incremental"),
    ),
    LSTMMutant(
        "an LSTM's state is updated where it lies, under whoever still holds it",
        "recurrence",
        "models.lstm:LSTM.next_memory",
        NEXT_STATE,
        "return memory.states.setflags(write=True) or np.stack(states, out=memory.states) is None "
        "or memory",
        ("check_memory_is_constant",),
    ),
    LSTMMutant(
        "an LSTM's reader goes back to the beginning with every segment",
        "reader",
        "models.lstm:LSTMReader._read",
        "states.append(cache.state)",
        "states.append(state)",
        ("check_incremental", "check_segmentation_invariance"),
        reads="NpxlReader",
    ),
    # The way back
    LSTMMutant(
        "an LSTM's cells send nothing back to the step before",
        "gradient",
        BACKWARD,
        "d_cell[b, k] = dc * f",
        "d_cell[b, k] = 0",
        ("check_gradients",),
    ),
    LSTMMutant(
        "an LSTM's hidden states send nothing back to the step before",
        "gradient",
        BACKWARD,
        "_multiply_rows(d_gates[t], w_h, d_next, False)",
        "d_next[...] = 0",
        ("check_gradients",),
    ),
    LSTMMutant(
        "an LSTM's forget gate learns from the cell that it has made",
        "gradient",
        BACKWARD,
        "d_row[d + k] = dc * cells[t, b, k] * f * (one - f)",
        "d_row[d + k] = dc * cells[t + 1, b, k] * f * (one - f)",
        ("check_gradients",),
    ),
    LSTMMutant(
        "an LSTM's gates learn without their bias",
        "gradient",
        "layers.lstm:lstm_backward",
        "dx = linear_backward(d_a, cache.x, weights.w_x, grads.w_x, grads.bias)  # [T, B, D]",
        "dx = linear_backward(d_a, cache.x, weights.w_x, grads.w_x)",
        ("check_gradients",),
    ),
    LSTMMutant(
        "an LSTM's recurrent weights learn from the state after the step",
        "gradient",
        "layers.lstm:lstm_backward",
        OF_W_H,
        "linear_backward_weight(d_a, cache.hidden[1:, :n_streams], grads.w_h)",
        ("check_gradients",),
    ),
    LSTMMutant(
        "an LSTM's recurrent weights learn nothing from the state before the segment",
        "gradient",
        "layers.lstm:lstm_backward",
        OF_W_H,
        "linear_backward_weight(d_a[1:], cache.hidden[1:-1, :n_streams], grads.w_h)",
        ("check_gradients", "check_stop_gradient"),
    ),
    # Dropout
    LSTMMutant(
        "what an LSTM's layer says to its own next step is dropped too",
        "dropout",
        STACK,
        "h, cache = lstm_forward(h, state, self.layer(self.params, n))",
        'kept = dropout_forward(state, rate, site_of(key, "state"))[0]; '
        "h, cache = lstm_forward(h, kept, self.layer(self.params, n))",
        ("check_reference",),
        dict(dropout=0.4),
    ),
)
