"""Check every gradient of a configuration of your own, at one segment with memory before it."""

import numpy as np

import npxl

config = npxl.ModelConfig(
    vocab_size=13, n_layer=3, n_head=2, d_model=8, d_head=5, d_inner=12, mem_len=6,
    attn_window=4, pre_lnorm=True, untie_r=True, dropout=0.2, dropatt=0.1,
    init_std=0.4,  # as small as usual, gradients would drown in the rounding of a difference
)  # fmt: skip
model = npxl.TransformerXL(config, seed=0, dtype=np.float64)
rng = np.random.default_rng(0)
text = rng.integers(0, config.vocab_size, (2, 13))  # two streams

first = model.forward(text[:, :6], text[:, 1:7], model.init_memory(2))
report = npxl.gradcheck(
    model, text[:, 6:-1], text[:, 7:], first.memory, rng=npxl.MaskKey(seed=1), entries=5
)
print(report)
assert report.passed
