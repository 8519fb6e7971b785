"""Shift, mask and softmax of relative attention scores in one pass over each row.

Row i of a segment of q queries that see K keys, the last q of them the segment's own, may look at
key j when max(0, m + i + 1 − W) ≤ j ≤ m + i, with m = K − q.  Its position scores are ordered by
descending distance, column c for distance K − 1 − c, so that key j, at distance m + i − j, finds
its score in column j + (q − 1 − i): the left shift of the paper's appendix B, done by an index.
Everything outside these limits is never read, and written as zero.
"""

from __future__ import annotations

from npxl.kernels import kernel
from npxl.kernels.exponential import exp


@kernel
def relative_softmax_forward(scores, position_scores, scale, window):
    """Overwrite content scores with the probabilities softmax_j((C_ij + X_i,j+(q−1−i)) · scale).

    scores [N, q, K] content terms C, (a) + (c), in, probabilities out; position_scores X [N, q, K]
    terms (b) + (d) by descending distance; scale of the type of the scores; window W keys a query.
    """
    n_rows, n_queries, n_keys = scores.shape
    zero, one = scores.dtype.type(0), scores.dtype.type(1)
    for n in range(n_rows):
        for i in range(n_queries):
            shift = n_queries - 1 - i
            stop = n_keys - shift
            start = max(0, stop - window)
            # Slices, so that the loops below count from zero and vectorise.
            row = scores[n, i, start:stop]
            shifted = position_scores[n, i, start + shift :]
            largest = (row[0] + shifted[0]) * scale
            for j in range(row.size):
                score = (row[j] + shifted[j]) * scale
                row[j] = score
                largest = score if score > largest else largest
            total = zero
            for j in range(row.size):
                weight = exp(row[j] - largest)
                row[j] = weight
                total += weight
            normalizer = one / total
            for j in range(row.size):
                row[j] *= normalizer
            scores[n, i, :start] = 0
            scores[n, i, stop:] = 0


@kernel
def relative_softmax_backward(d_probabilities, probabilities, d_position_scores, scale, window):
    """Overwrite the gradient of the probabilities with that of the content scores.

    With p the probabilities, ds = p · (dp − Σ p · dp) · scale; the same numbers, shifted back to
    the right, are the gradient of the position scores, d_position_scores [N, q, K], overwritten.
    """
    n_rows, n_queries, n_keys = probabilities.shape
    zero = probabilities.dtype.type(0)
    for n in range(n_rows):
        for i in range(n_queries):
            shift = n_queries - 1 - i
            stop = n_keys - shift
            start = max(0, stop - window)
            p = probabilities[n, i, start:stop]
            dp = d_probabilities[n, i, start:stop]
            shifted = d_position_scores[n, i, start + shift :]
            inner = zero
            for j in range(p.size):
                inner += p[j] * dp[j]
            for j in range(p.size):
                ds = p[j] * (dp[j] - inner) * scale
                dp[j] = ds
                shifted[j] = ds
            d_probabilities[n, i, :start] = 0
            d_probabilities[n, i, stop:] = 0
            d_position_scores[n, i, : start + shift] = 0
