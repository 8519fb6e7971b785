"""Models that are no Transformer-XL, and say so: the checks are for anybody's."""

import copy

import numpy as np


class WindowedLinear:
    """log p = softmax(Σ_j A_j[x_{t−j}], j < W): one layer that looks W symbols up, and adds.

    A state is the last W − 1 symbols.  Written without npxl.
    """

    n_layer = 1
    tolerance = 1e-12
    averages = False  # it adds up
    ignore_index = -1

    def __init__(self, window=3, vocab_size=5, seed=0):
        self.vocab_size, self.window, self.mem_len = vocab_size, window, window - 1
        rng = np.random.default_rng(seed)
        self.tables = rng.standard_normal((window, vocab_size, vocab_size))

    def start(self, batch_size):
        return np.zeros((batch_size, 0), int)

    def log_probs(self, inputs, state):
        scores = self._scores(inputs, state)
        scores -= scores.max(-1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        return log_p, self._text(inputs, state)[:, -self.mem_len :]

    def _text(self, inputs, state):
        if len(inputs) != len(state):
            raise ValueError("as many rows of inputs as of the state")
        return np.concatenate([state, inputs], axis=1)

    def _scores(self, inputs, state):
        scores = np.zeros((*inputs.shape, self.vocab_size))
        for j, (here, symbols) in enumerate(self._seen(inputs, state)):
            scores[:, here] += self.tables[j][symbols]
        return scores

    def _seen(self, inputs, state):
        """By distance j, which of the inputs have a symbol there, and the symbols."""
        text = self._text(inputs, state)
        for j in range(self.window):
            first = max(0, j - state.shape[1])
            stop = text.shape[1] - j
            yield slice(first, None), text[:, max(0, state.shape[1] - j) : max(0, stop)]

    def nll(self, inputs, targets, state):
        log_p, state = self.log_probs(inputs, state)
        scored = targets != self.ignore_index
        nll = -np.take_along_axis(log_p, np.where(scored, targets, 0)[..., None], 2)[..., 0]
        return np.where(scored, nll, 0), state

    def parameters(self):
        return {"tables": self.tables}

    def gradients(self, inputs, targets, state, dnll):
        log_p, _ = self.log_probs(inputs, state)
        d_scores = np.exp(log_p) - (targets[..., None] == np.arange(self.vocab_size))
        d_scores *= np.where(targets == self.ignore_index, 0, dnll)[..., None]
        d_tables = np.zeros_like(self.tables)
        for j, (here, symbols) in enumerate(self._seen(inputs, state)):
            np.add.at(d_tables[j], symbols, d_scores[:, here])
        return {"tables": d_tables}

    def memory(self, state):
        return np.eye(self.vocab_size)[state][None]

    def select(self, state, rows):
        return state[rows]

    def generate(self, prompt, n_tokens, seed):
        rng, state = np.random.default_rng(seed), self.start(1)
        tokens, found, new = [], [], prompt
        for _ in range(n_tokens):
            log_p, state = self.log_probs(np.asarray(new)[None], state)
            last = log_p[0, -1]
            tokens.append(rng.choice(self.vocab_size, p=np.exp(last) / np.exp(last).sum()))
            found.append(last[tokens[-1]])
            new = tokens[-1:]
        return np.array(tokens), np.array(found)


class RelativeValues(WindowedLinear):
    """log p from the average of the last W symbols' vectors, each plus one of its distance.

    Values that depend on distances, as in equation 3 of Shaw et al. 2018: the average of equal
    symbols is not always the same.  Its gradients are those of a sum.
    """

    def __init__(self, averages=False):
        super().__init__()
        self.averages = averages
        self.tables = self.tables[:1] + self.tables[:, :1]  # [W, V, V]

    def _scores(self, inputs, state):
        places = np.arange(state.shape[1], state.shape[1] + inputs.shape[1])
        return super()._scores(inputs, state) / np.minimum(places + 1, self.window)[:, None]


class DropsEmbeddings(WindowedLinear):
    """What it embeds is dropped in training, at a rate of 0.3, and a place is added after that.

    `places` are of the width of embeddings, one for all tokens or [T, d]; 0 for none.  It scores
    without them.
    """

    width, rate = 8, 0.3

    def __init__(self, places=0.0, scale=1 / 0.7):
        super().__init__()
        self.places, self.scale, self.seed = places, scale, None
        self.vectors = np.random.default_rng(1).standard_normal((self.vocab_size, self.width))

    def train(self, seed, first_stream=0):
        other = copy.copy(self)
        other.seed = seed
        return other

    def embeddings(self, inputs, state):
        vectors = self.vectors[inputs]  # [B, T, d]
        if self.seed is not None:
            kept = np.random.default_rng(self.seed).random(vectors.shape) > self.rate
            vectors = vectors * kept * self.scale
        return vectors + self.places


class FadingAverage:
    """log p from an average of all symbols so far, each counting half as much as the next one.

    It forgets nothing: no window, and a state that is a sum.
    """

    n_layer, window, mem_len = 1, None, None
    vocab_size = 4
    tolerance = 1e-12

    def start(self, batch_size):
        return np.zeros((batch_size, self.vocab_size)), np.zeros((batch_size, 1))

    def log_probs(self, inputs, state):
        total, weight = state
        log_p = np.empty((*inputs.shape, self.vocab_size))
        for t in range(inputs.shape[1]):
            total = total / 2 + np.eye(self.vocab_size)[inputs[:, t]]
            weight = weight / 2 + 1
            scores = 3 * total / weight
            log_p[:, t] = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        return log_p, (total, weight)


class Indifferent:
    """Every symbol is as probable as any other, whatever was read."""

    n_layer, window, mem_len, vocab_size, tolerance = 2, 3, 4, 5, 1e-12
    ignore_index = -100

    def start(self, batch_size):
        return np.zeros((self.n_layer, batch_size, 0, 2))

    def log_probs(self, inputs, state):
        if len(inputs) != state.shape[1]:
            raise ValueError("as many rows of inputs as of the state")
        new = np.zeros((self.n_layer, *inputs.shape, 2))
        log_p = np.full((*inputs.shape, self.vocab_size), -np.log(self.vocab_size))
        return log_p, np.concatenate([state, new], axis=2)[:, :, -self.mem_len :]

    def nll(self, inputs, targets, state):
        log_p, state = self.log_probs(inputs, state)
        nll = -log_p[:, -targets.shape[1] :, 0]
        return np.where(targets == self.ignore_index, 0, nll), state

    def parameters(self):
        return {"unread": np.ones(3)}

    def gradients(self, inputs, targets, state, dnll):
        return {"unread": np.zeros(3)}

    def memory(self, state):
        return state.copy()

    def select(self, state, rows):
        return state[:, rows]

    def with_mem_len(self, mem_len):
        other = Indifferent()
        other.mem_len = mem_len
        return other

    def reference(self):
        return self

    def generate(self, prompt, n_tokens, seed):
        return np.zeros(n_tokens, int), np.full(n_tokens, -np.log(self.vocab_size))

    def train(self, seed, first_stream=0):
        return self
