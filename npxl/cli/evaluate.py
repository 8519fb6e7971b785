"""npxl eval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from cyclopts.types import PositiveInt

from npxl.cli.options import AsJson, Which, options_of
from npxl.cli.output import INTERRUPTED, Console, print_json, print_table, remark
from npxl.config import ModelConfig, TrainConfig
from npxl.datasets import UNITS, unit_of
from npxl.errors import NpxlError

if TYPE_CHECKING:
    from npxl.data import Split
    from npxl.inference import Score
    from npxl.models import LanguageModel

    ReadingOptions = dict[str, Any]
    SegmentOptions = dict[str, Any]
    DatasetOptions = dict[str, Any]
else:
    ReadingOptions = options_of(
        ModelConfig, ("mem_len", "attn_window", "clamp_len"), default="that of the run"
    )
    SegmentOptions = options_of(TrainConfig, ("tgt_len",), default="that of the run")
    DatasetOptions = options_of(TrainConfig, ("dataset",), default="that of the run")

_LABELS: dict[str, str] = {
    "unit": "scored in",
    "nll": "nats per token",
    "ppl": UNITS["ppl"],
    "bpc": UNITS["bpc"],
    "bpb": UNITS["bpb"],
    "tokens_per_second": "tokens per second",
}


def evaluate(
    run: Path,
    corpus: str | None = None,
    /,
    *,
    split: str = "test",
    checkpoint: Which = "best",
    segment: Annotated[SegmentOptions | None, Parameter(name="*")] = None,
    reading: Annotated[ReadingOptions | None, Parameter(name="*")] = None,
    layout: Annotated[DatasetOptions | None, Parameter(name="*")] = None,
    sliding: PositiveInt | None = None,
    workers: int | None = None,
    as_json: AsJson = False,
) -> int:
    """Score every token of a split but the first, the memory carried from beginning to end.

    Parameters
    ----------
    run
        Folder of a run.
    corpus
        Another text, which is read in the run's vocabulary; the run's own when not given.
    split
        Part of the text: train, valid or test; all is the whole text, and of a folder every file.
    checkpoint
        The model with the best validation score, or the last one.
    sliding
        Predict every token from this number of tokens before it, which are read anew for its sake:
        a window that slides one token at a time, without memory.
    workers
        Threads; one for each processor core when not given.
    as_json
        Print one JSON object instead of a table.
    """
    from npxl.data import load_corpus, load_whole
    from npxl.inference import evaluate, evaluate_sliding
    from npxl.inference.evaluation import bits_per_byte, bits_per_character, perplexity
    from npxl.threads import available_cores
    from npxl.training.run import Run

    for name in ("tgt_len", "mem_len"):
        if sliding is not None and name in {**(segment or {}), **(reading or {})}:
            raise NpxlError(
                f"sliding is {sliding}, so that there are neither segments nor a memory: leave out "
                f"{name}."
            )
    opened = Run.open(run)
    vocab = opened.vocabulary
    dataset = replace(opened.train_config, **(layout or {})).dataset
    source = opened.corpus.path if corpus is None else corpus
    if split == "all":
        scored = load_whole(source, vocab, dataset)
    else:
        own = corpus is None and dataset == opened.train_config.dataset
        whole = opened.corpus if own else load_corpus(source, vocab=vocab, dataset=dataset)
        scored = [whole.split(split)]
        for sentence in whole.remarks:
            remark(sentence, style="yellow")
    if n_unknown := sum(part.n_unknown for part in scored):
        remark(
            f"{n_unknown:,} of {sum(map(len, scored)):,} tokens are not in the run's vocabulary; "
            "each is scored as the unknown symbol.",
            style="yellow",
        )
    model = opened.model(checkpoint).reconfigured(**(reading or {}))
    tgt_len = replace(opened.train_config, **(segment or {})).tgt_len
    n_workers = available_cores() if workers is None else workers
    if sliding is None:
        read = partial(evaluate, tgt_len=tgt_len)
    else:
        read = partial(evaluate_sliding, window=sliding)
    score = _score(model, scored, read, n_workers)
    if score is None:
        remark("Stopped before all of the text was scored: there is no score.", style="yellow")
        return INTERRUPTED
    unit = unit_of(dataset, vocab.kind)
    values = {
        "split": split,
        "unit": unit,
        **({} if sliding is None else {"sliding": sliding}),
        "tokens": score.tokens,
        "nll": score.nll,
        "bpc": bits_per_character(score.nll, *scored),
        "bpb": bits_per_byte(score.nll, *scored),
        "ppl": perplexity(score.nll),
        "tokens_per_second": round(score.tokens_per_second, 1),
    }
    if as_json:
        print_json(values)
    else:
        text = opened.corpus_source if corpus is None else corpus
        shown = values | {"text": text, "unit": UNITS[unit]}
        print_table({_LABELS.get(name, name): shown[name] for name in ("text", *values)})
    if not math.isfinite(score.nll):
        remark("npxl: The score is not a finite number: this model has diverged.", style="red")
        return 1
    return 0


def _score(
    model: LanguageModel, splits: Sequence[Split], read: Callable[..., Score], n_workers: int
) -> Score | None:
    """The score of all splits, each read from an empty memory, with a bar; None after Ctrl-C."""
    from rich.progress import Progress

    from npxl.inference import EvaluationStopped, Score
    from npxl.signals import StopRequest

    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    with StopRequest() as stop, bar:
        task = bar.add_task("scoring")
        try:
            scores = [
                read(
                    model,
                    split.tokens,
                    n_workers=n_workers,
                    progress=lambda done, total: bar.update(task, completed=done, total=total),
                    stop=lambda: stop.requested,
                )
                for split in splits
            ]
        except EvaluationStopped:
            return None
    n_tokens = sum(score.tokens for score in scores)
    nll = sum(score.nll * score.tokens for score in scores) / n_tokens
    seconds = sum(score.tokens / score.tokens_per_second for score in scores)
    return Score(n_tokens, nll, n_tokens / seconds)
