"""The mathematics: one file a layer, each forward function followed by its backward function.

Forward functions return their output and a cache; backward functions take the gradient of the
output and that cache, return the gradient of the input and *add* parameter gradients into the
arrays they are given.  `linear_forward` and `embedding_forward` return their output alone: their
backward functions need nothing but the input, which the caller has.
"""
