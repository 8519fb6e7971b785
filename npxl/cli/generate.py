"""npxl generate."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from npxl.cli.options import Which
from npxl.cli.output import INTERRUPTED, remark


def generate(
    run: Path,
    /,
    *,
    prompt: str = "",
    tokens: int = 500,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    mem_len: int | None = None,
    checkpoint: Which = "best",
) -> int:
    """Continue a text, and print it while it is drawn.

    Parameters
    ----------
    run
        Folder of a run.
    prompt
        Text to continue, which is printed first; without it, the text begins as after a newline.
    tokens
        Number of tokens to draw.
    temperature
        Below 1, what is probable becomes more probable; at 0 it is the only choice.
    top_k
        Draw only from the k most probable tokens.
    top_p
        Draw only from the fewest most probable tokens that have this probability together.
    seed
        The same seed draws the same text.
    mem_len
        Tokens to remember; when not given, as many as in training.
    checkpoint
        The model with the best validation score, or the last one.
    """
    from npxl.inference import generate
    from npxl.signals import StopRequest
    from npxl.training.run import Run

    opened = Run.open(run)
    vocabulary = opened.vocabulary
    if unknown := vocabulary.unknown(prompt):
        remark(
            f"The run's vocabulary lacks {', '.join(map(repr, unknown))}; the model reads the "
            "unknown symbol instead.",
            style="yellow",
        )
    ids = vocabulary.encode(prompt)
    drawn = generate(
        opened.model(checkpoint),
        ids if len(ids) else vocabulary.opening,
        tokens,
        temperature,
        top_k,
        top_p,
        seed,
        mem_len,
    )
    decoder = vocabulary.decoder()
    _write(decoder.feed(ids))
    started = time.perf_counter()
    with StopRequest() as stop:  # Ctrl-C must not end just anywhere in the compiler
        for token, _ in drawn:
            _write(decoder.feed([token]))
            if stop.requested:
                return INTERRUPTED
    seconds = time.perf_counter() - started
    _write(decoder.finish() + "\n" * sys.stdout.isatty())
    if tokens:
        speed = f"{tokens / seconds:,.0f} a second"
        remark(f"{tokens:,} tokens in {seconds:.1f} s, {speed}", style="dim")
    return 0


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
