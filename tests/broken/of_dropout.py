"""Faults in dropout."""

from broken.mutant import Mutant

DROPPED = dict(dropout=0.4)
STREAM = "stream_low = mix(rule.key_low ^ ((rule.first_stream + row) & _WORD))"

MUTANTS = (
    Mutant(
        "what is kept is not scaled up",
        "dropout",
        "layers.dropout:dropout_rule",
        "return DropoutRule(*site, round(rate * 2**32), dtype.type(1 / (1 - rate)))",
        "return DropoutRule(*site, round(rate * 2**32), dtype.type(1))",
        ("check_dropout_scale",),
        DROPPED,
    ),
    Mutant(
        "the rate is that of keeping",
        "dropout",
        "layers.dropout:dropout_rule",
        "return DropoutRule(*site, round(rate * 2**32), dtype.type(1 / (1 - rate)))",
        "return DropoutRule(*site, round((1 - rate) * 2**32), dtype.type(1 / (1 - rate)))",
        ("check_dropout_scale",),
        DROPPED,
    ),
    Mutant(
        "evaluation drops too",
        "dropout",
        "layers.dropout:site_of",
        "return None if key is None else key.site(name)",
        "return (key or MaskKey()).site(name)",
        ("check_attention_averages",),
        DROPPED,
    ),
    Mutant(
        "evaluation drops too, by a generator of its own",
        "dropout",
        "layers.dropout:site_of",
        "return None if key is None else key.site(name)",
        "return (key or MaskKey(np.random.randint(2**31))).site(name)",
        ("check_determinism",),
        DROPPED,
    ),
    Mutant(
        "the gradient ignores the mask",
        "dropout",
        "layers.dropout:dropout_backward",
        "return _apply(dy, cache)",
        "return dy",
        ("check_dropout_gradients",),
        DROPPED,
    ),
    Mutant(
        "masks belong to a worker's rows, not to streams",
        "dropout",
        "kernels.random_mask:keep",
        STREAM,
        "stream_low = mix(rule.key_low ^ (row & _WORD))",
        ("check_dropout_masks",),
        DROPPED,
    ),
    Mutant(
        "all streams share one mask",
        "dropout",
        "kernels.random_mask:keep",
        STREAM,
        "stream_low = mix(rule.key_low ^ (rule.first_stream & _WORD))",
        ("check_dropout_masks",),
        DROPPED,
    ),
    Mutant(
        "a seed changes nothing",
        "dropout",
        "layers.dropout:MaskKey.site",
        "entropy = np.random.SeedSequence((self.seed, self.step, zlib.crc32(name.encode())))",
        "entropy = np.random.SeedSequence((self.step, zlib.crc32(name.encode())))",
        ("check_dropout_masks",),
        DROPPED,
    ),
    Mutant(
        "dropped probabilities of attention are dropped otherwise on the way back",
        "dropout",
        "layers.attention:attend_backward",
        "rule = dropout_rule(cache.dropout, query.dtype)",
        "rule = dropout_rule(None, query.dtype)",
        ("check_dropout_gradients",),
        dict(dropatt=0.4),
    ),
)
