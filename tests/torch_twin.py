"""Equations of Transformer-XL and the LSTM in torch, for its autograd: no code of npxl's.

Short and literal.  Distances are looked up, not shifted; every probability of the vocabulary is
computed; an LSTM's steps are torch's own.
"""

from itertools import pairwise

import torch
from torch.nn.functional import layer_norm, log_softmax


def log_probs(config, params, inputs, memory):
    """log p after each input, [B, q, V], and what the next segment remembers, [n_layer, B, m', d].

    `params` are tensors by npxl's names; memory is [n_layer, B, m, d], of an LSTM h and c.
    """
    h, states = embed(config, params, inputs), []
    if config.architecture == "lstm":
        for n, state in enumerate(memory):
            h, after = recurrent(params, f"layers.{n}", h, state)
            states.append(after)
        return vocabulary(config, params, h), torch.stack(states).detach()
    for n, cached in enumerate(memory):
        states.append(torch.cat([cached, h], dim=1))
        h = layer(config, params, f"layers.{n}", h, cached)
    end = memory.shape[2] + max(0, inputs.shape[1] - config.ext_len)
    kept = torch.stack(states)[:, :, max(0, end - config.mem_len) : end].detach()
    return vocabulary(config, params, h), kept


def embed(config, params, inputs):
    """√d_model · (row of the table), projected if there is a projection."""
    if config.div_val == 1:
        table = params["embedding.weight"]
        if "embedding.projection" in params:
            table = table @ params["embedding.projection"].T
    else:
        clusters = range(len(config.cutoffs) + 1)
        table = torch.cat(
            [params[f"embedding.{i}.weight"] @ params[f"embedding.{i}.projection"].T
             for i in clusters]
        )  # fmt: skip
    return config.d_model**0.5 * table[inputs]


def recurrent(params, name, x, state):
    """A layer of torch's, whose gates are i, f, g and o, and which adds a second bias."""
    w_x, w_h, bias = (
        torch.cat([params[f"{name}.{part}"].chunk(4)[gate] for gate in (0, 1, 3, 2)])
        for part in ("w_x", "w_h", "bias")
    )
    h, c = (each[None].contiguous() for each in state.unbind(dim=1))  # [1, B, d]
    weights = [w_x, w_h, bias, torch.zeros_like(bias)]
    y, h, c = torch.lstm(x, (h, c), weights, True, 1, 0.0, False, False, True)
    return y, torch.stack([h[0], c[0]], dim=1)


def layer(config, params, name, h, memory):
    """Attention and feed-forward block, with normalisation before or after."""
    pre, d = config.pre_lnorm, config.d_model
    context = torch.cat([memory, h], dim=1)
    place = torch.arange(context.shape[1] - 1, -1, -1).clamp(0, config.clamp_len)
    if config.attn_type == "vaswani" and name == "layers.0":
        context = context + sinusoid(d, place, context.dtype)
    if config.attn_type == "al-rfou":
        context = context + params[f"{name}.position"].flip(0)[place]
    h = context[:, memory.shape[1] :]

    def norm(part, x):
        gain, bias = params[f"{name}.{part}_norm.gain"], params[f"{name}.{part}_norm.bias"]
        return layer_norm(x, (d,), gain, bias, config.layer_norm_epsilon)

    y = attention(config, params, name, norm("attention", context) if pre else context, h.shape[1])
    h = h + y if pre else norm("attention", h + y)
    w_1, b_1, w_2, b_2 = (
        params[f"{name}.feed_forward.{part}"] for part in ("w_1", "b_1", "w_2", "b_2")
    )
    x = norm("feed_forward", h) if pre else h
    y = torch.relu(x @ w_1.T + b_1) @ w_2.T + b_2
    return h + y if pre else norm("feed_forward", h + y)


def attention(config, params, name, context, n_queries):
    """Softmax of the scores over the keys in the window, values summed by it, projected."""
    n_keys, heads = context.shape[1], (config.n_head, config.d_head)
    mine = {
        part: params.get(f"{name}.attention.{part}", params.get(f"attention.{part}"))
        for part in ("w_q", "w_k", "w_v", "w_r", "w_o", "u", "v", "relative", "relative_bias")
    }

    def projected(w, x):
        return (x @ mine[w].T).reshape(*x.shape[:-1], *heads)

    q = projected("w_q", context[:, n_keys - n_queries :])
    k, value = projected("w_k", context), projected("w_v", context)
    distance = torch.arange(n_keys - n_queries, n_keys)[:, None] - torch.arange(n_keys)  # [q, K]
    encoded = distance.clamp(0, config.clamp_len)
    u = mine["u"] if config.attn_type in ("dai", "shaw") else 0
    scores = torch.einsum("bihc,bjhc->bhij", q + u, k)
    if config.attn_type == "dai":  # (q_i + u)·k_j + (q_i + v)·W_r R_{i−j}
        r = projected("w_r", sinusoid(config.d_model, encoded, context.dtype))  # [q, K, H, d_head]
        scores = scores + torch.einsum("bihc,ijhc->bhij", q + mine["v"], r)
    if config.attn_type == "shaw":  # (q_i + u)·k_j + q_i·r_{i−j} + b_{i−j}, the last row distance 0
        r, b = (mine[part].flip(0)[encoded] for part in ("relative", "relative_bias"))
        scores = scores + torch.einsum("bihc,ijhc->bhij", q, r) + b.permute(2, 0, 1)
    hidden = (distance < 0) | (distance >= (config.attn_window or n_keys))
    scores = (scores / config.d_head**0.5).masked_fill(hidden, -torch.inf)
    y = torch.einsum("bhij,bjhc->bihc", scores.softmax(dim=-1), value)
    return y.reshape(*y.shape[:2], -1) @ mine["w_o"].T


def sinusoid(d_model, position, dtype):
    """All sines, then all cosines."""
    angle = position[..., None] * 10000.0 ** (-torch.arange(0, d_model, 2, dtype=dtype) / d_model)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def vocabulary(config, params, h):
    """log p of every symbol: of its cluster, a column of the first softmax, and within that."""
    bounds = [0, *config.cutoffs, config.vocab_size]
    log_p = []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        part = "embedding" if config.tie_weight else "softmax"
        if config.div_val == 1:
            weight, embedding = params[f"{part}.weight"][start:stop], "embedding.projection"
        else:
            weight, embedding = params[f"{part}.{i}.weight"], f"embedding.{i}.projection"
        bias, x = params["softmax.bias"][start:stop], h
        if embedding in params:
            is_tied = config.tie_projs and config.tie_projs[i]
            x = h @ params[embedding if is_tied else f"softmax.{i}.projection"]
        if i == 0 and config.cutoffs:
            weight = torch.cat([weight, params["softmax.cluster_weight"]])
            bias = torch.cat([bias, params["softmax.cluster_bias"]])
        within = log_softmax(x @ weight.T + bias, dim=-1)
        if i == 0:
            log_p.append(within[..., :stop])
            of_clusters = within[..., stop:]
        else:
            log_p.append(of_clusters[..., i - 1 : i] + within)
    return torch.cat(log_p, dim=-1)
