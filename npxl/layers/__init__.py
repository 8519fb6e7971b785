"""The mathematics: one file a layer, each forward function followed by its backward function.

Forward functions return their output and a cache; backward functions take the gradient of the
output and that cache, return the gradient of the input and *add* parameter gradients into the
arrays they are given.
"""
