"""A Transformer-XL in torch, as somebody might write it: test_torch_module.py checks it."""

import torch
from torch import nn


class Layer(nn.Module):
    """Attention over memory and segment, relative positions, then a feed-forward block."""

    def __init__(self, d_model: int, n_head: int, d_inner: int) -> None:
        super().__init__()
        self.n_head, d_head = n_head, d_model // n_head
        self.query, self.key, self.value, self.distance, self.out = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(5)
        )
        self.u, self.v = (nn.Parameter(torch.randn(n_head, d_head)) for _ in range(2))
        self.feed_forward = nn.Sequential(
            nn.Linear(d_model, d_inner), nn.ReLU(), nn.Linear(d_inner, d_model)
        )
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, memory, encoded, hidden):
        """x [B, q, d], memory [B, m, d], encoded [q, K, d] of distances, hidden [q, K]."""
        context = torch.cat([memory, x], dim=1)  # [B, K, d]
        heads = (self.n_head, -1)
        q = self.query(x).unflatten(-1, heads)
        k, value = (of(context).unflatten(-1, heads) for of in (self.key, self.value))
        r = self.distance(encoded).unflatten(-1, heads)  # [q, K, H, d_head]
        scores = torch.einsum("bihc,bjhc->bhij", q + self.u, k)
        scores = scores + torch.einsum("bihc,ijhc->bhij", q + self.v, r)
        scores = (scores / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        y = torch.einsum("bhij,bjhc->bihc", scores.softmax(-1), value).flatten(-2)
        x = self.norm_1(x + self.out(y))
        return self.norm_2(x + self.feed_forward(x))


class TransformerXL(nn.Module):
    """Reads segments; of every layer it remembers the last `mem_len` inputs.

    A query sees itself and `mem_len` keys before it.
    """

    def __init__(self, vocab_size, n_layer=2, d_model=8, n_head=2, d_inner=16, mem_len=4):
        super().__init__()
        self.d_model, self.mem_len = d_model, mem_len
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(Layer(d_model, n_head, d_inner) for _ in range(n_layer))
        self.vocabulary = nn.Linear(d_model, vocab_size)

    def forward(self, tokens, memory):
        """log p [B, q, V] after each token [B, q], and memory for the next segment.

        Memory is a list of [B, m, d_model], one a layer.
        """
        q, m = tokens.shape[1], memory[0].shape[1]
        distance = torch.arange(m, m + q)[:, None] - torch.arange(m + q)  # [q, K]
        hidden = (distance < 0) | (distance > self.mem_len)
        x = self.embedding(tokens)
        encoded, remembered = self.sinusoid(distance).to(x.dtype), []
        for layer, cached in zip(self.layers, memory, strict=True):
            context = torch.cat([cached, x], dim=1).detach()
            remembered.append(context[:, max(0, m + q - self.mem_len) :])
            x = layer(x, cached, encoded, hidden)
        return self.vocabulary(x).log_softmax(-1), remembered

    def sinusoid(self, distance):
        """Sines, then cosines, [..., d_model]."""
        frequency = 10000.0 ** (-torch.arange(0, self.d_model, 2).double() / self.d_model)
        angle = distance.clamp(min=0)[..., None] * frequency
        return torch.cat([angle.sin(), angle.cos()], dim=-1)

    def no_memory(self, batch_size):
        """What there is before the first segment."""
        weight = self.vocabulary.weight
        return [weight.new_zeros(batch_size, 0, self.d_model) for _ in self.layers]
