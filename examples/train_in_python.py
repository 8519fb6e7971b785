"""Train a small model, evaluate it and let it write: the parts of npxl train, without the loop.

`npxl train` does this and more (checkpoints, resuming, metrics); here is what happens inside.
"""

import numpy as np

import npxl
from npxl.data.streams import Streams
from npxl.inference.evaluation import evaluate
from npxl.inference.generation import generate
from npxl.training.optimizers import clip_scale, gradient_norm, optimizer_for
from npxl.training.schedules import learning_rate
from npxl.training.workers import Workers

corpus = npxl.load_corpus("kjv")
train = npxl.TrainConfig(batch_size=8, tgt_len=32, steps=500, warmup_steps=50, lr=5e-3)
model = npxl.TransformerXL(
    npxl.ModelConfig(
        vocab_size=corpus.vocab.size, n_layer=2, n_head=2, d_model=64, d_head=32, d_inner=128,
        mem_len=64, pre_lnorm=True,
    )
)  # fmt: skip
streams = Streams(corpus.train.tokens, train.batch_size, train.tgt_len)
optimizer = optimizer_for(model.params, train)

with Workers(model, train.batch_size, n_workers=2) as workers:
    for step in range(1, train.steps + 1):
        inputs, targets = streams.batch(consumed=(step - 1) * train.tgt_len)
        result = workers.step(inputs, targets, rng=npxl.MaskKey(seed=0, step=step))
        scale = clip_scale(gradient_norm(result.gradient.flat), train.clip)
        lr = learning_rate(step, train, train.steps)
        optimizer.update(model.params.flat, result.gradient.flat, lr, scale)
        if step % 100 == 0:
            print(f"step {step}: {result.nll / np.log(2):.2f} bits per byte")

score = evaluate(model, corpus.valid.tokens[:10_000], tgt_len=32)
print(f"validation: {score.nll / np.log(2):.2f} bits per byte")

prompt = corpus.vocab.encode("And the LORD said ")
tokens = [drawn.token for drawn in generate(model, prompt, n_tokens=200, temperature=0.7)]
print(corpus.vocab.decode([*prompt, *tokens]))
