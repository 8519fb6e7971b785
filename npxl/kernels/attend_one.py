"""Relative attention of a single query: one pass over the keys, one over the values."""

from __future__ import annotations

from npxl.kernels import kernel
from npxl.kernels.exponential import exp
from npxl.kernels.vectors import row_maximum


@kernel
def attend_one(query_u, query_v, key, value, relative, scale, heads, scores, attended):
    """Fill attended [B, H, D] with the values' mean under softmax(((q+u)ᵀk + (q+v)ᵀr) · scale).

    query_u, query_v [B, H, D]; key, value [B, K, H, D]; relative [K, H, D] by descending distance,
    so that key j has row j; scores [H, K] to work in; scale of their type.  Only the heads of
    range(*heads) are computed.
    """
    n_streams, n_keys, _, width = key.shape
    zero, one = scores.dtype.type(0), scores.dtype.type(1)
    for b in range(n_streams):
        # Keys outside, heads inside: the order in which they lie in memory.
        for j in range(n_keys):
            for h in range(heads[0], heads[1]):
                q_u, q_v = query_u[b, h], query_v[b, h]
                k, r = key[b, j, h], relative[j, h]
                score = zero
                for d in range(width):
                    score += q_u[d] * k[d] + q_v[d] * r[d]
                scores[h, j] = score * scale
        for h in range(heads[0], heads[1]):
            row = scores[h]
            largest = row_maximum(row)
            total = zero
            for j in range(n_keys):
                weight = exp(row[j] - largest)
                row[j] = weight
                total += weight
            normalizer = one / total
            for j in range(n_keys):
                row[j] *= normalizer
        attended[b, heads[0] : heads[1]] = 0
        for j in range(n_keys):
            for h in range(heads[0], heads[1]):
                probability = scores[h, j]
                v, out = value[b, j, h], attended[b, h]
                for d in range(width):
                    out[d] += probability * v[d]
