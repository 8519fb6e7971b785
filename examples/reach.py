"""Which earlier tokens can move a prediction?  Exactly the n_layer · (W − 1) before it.

Change one token, and see which later outputs differ in even one bit.
"""

import numpy as np

import npxl

config = npxl.ModelConfig(
    vocab_size=10, n_layer=3, n_head=2, d_model=16, d_head=8, d_inner=32, mem_len=8, attn_window=5
)
model = npxl.TransformerXL(config, seed=0, dtype=np.float64)
text = np.random.default_rng(0).integers(0, config.vocab_size, (1, 24))


def read(tokens):
    """Log-probabilities after each token, read in segments of four with memory carried over."""
    memory, outputs = model.init_memory(1), []
    for segment in np.split(tokens, 6, axis=1):
        log_p, memory = model.log_probs(segment, memory)
        outputs.append(log_p)
    return np.concatenate(outputs, axis=1)[0]


before = read(text)
for changed in range(0, 24, 3):
    other = text.copy()
    other[0, changed] = (other[0, changed] + 1) % config.vocab_size
    moved = (read(other) != before).any(axis=1)
    print(f"token {changed:2} moves", "".join("█" if m else "·" for m in moved))
    last = np.flatnonzero(moved)[-1]
    assert last == min(changed + config.reach, 23)
print(f"reach: {config.n_layer} layers × (window {config.attn_window} − 1) = {config.reach} tokens")
