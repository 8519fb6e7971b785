"""`npxl audit`: the gradients of one configuration, at a size at which every entry is checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.progress import Progress

from npxl.audit.gradients import gradcheck
from npxl.audit.report import AuditReport
from npxl.config import ModelConfig
from npxl.layers.dropout import MaskKey
from npxl.models.transformer_xl import TransformerXL

# Large enough for every mechanism to act, small enough to perturb entry by entry.
_LARGEST = {
    "vocab_size": 11,
    "n_layer": 2,
    "n_head": 2,
    "d_model": 6,
    "d_head": 4,
    "d_inner": 8,
    "mem_len": 5,
    "clamp_len": 4,
    "ext_len": 1,
}
# Embeddings of the fourth cluster have width 8 // 2³.
_MOST_CUTOFFS, _DIV_VAL, _D_EMBED = 3, 2, 8
# Parameters as small as a fresh model's would leave gradients too small to tell from rounding.
_INIT_STD = 0.4
_BATCH_SIZE = 2


def audit(config: ModelConfig, seed: int = 0, console: Console | None = None) -> AuditReport:
    """Check every entry of every gradient of a small model of this form.

    Parameters
    ----------
    config
        Scaled down by `scaled_down` first.
    seed
        Of parameters, tokens and cotangents.
    console
        Where to print each table as soon as it is found, and a bar until then if this is a
        terminal; nowhere when not given.
    """
    small = scaled_down(config)
    if console is not None:
        changes = [
            f"{name} {getattr(config, name)} to {getattr(small, name)}"
            for name in config.__dataclass_fields__
            if getattr(config, name) != getattr(small, name)
        ]
        console.print(f"Checked in float64, scaled: {', '.join(changes) or 'nothing'}.")
    model = TransformerXL(small, seed=seed, dtype=np.float64)
    draw = np.random.default_rng(seed)
    length = small.mem_len + 2
    _, memory = model.log_probs(
        draw.integers(0, small.vocab_size, (_BATCH_SIZE, length)), model.init_memory(_BATCH_SIZE)
    )
    cases = {
        "a segment of 4 after memory": (4, memory, MaskKey(seed)),
        "a segment of 1 after memory": (1, memory, None),
        "a first segment of 3": (3, model.init_memory(_BATCH_SIZE), None),
    }
    reports = {}
    shown = console is not None and console.is_terminal
    with Progress(console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("")
        for name, (tgt_len, before, rng) in cases.items():
            bar.update(task, description=name)
            inputs = draw.integers(0, small.vocab_size, (_BATCH_SIZE, small.ext_len + tgt_len))
            targets = draw.integers(0, small.vocab_size, (_BATCH_SIZE, tgt_len))
            reports[name] = gradcheck(
                model, inputs, targets, before, rng, entries=None, seed=seed,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )  # fmt: skip
            if console is not None:
                console.print(f"\n[bold]{name}[/bold] (memory of {before.length})")
                console.print(reports[name].table())
                console.print(reports[name].summary(), highlight=False)
    report = AuditReport(small, seed, reports)
    if console is not None:
        console.print(f"\n{report.summary()}", highlight=False)
    return report


def scaled_down(config: ModelConfig) -> ModelConfig:
    """The same form with every size cut to what can be checked entry by entry.

    The window keeps its relation to the memory: W ≤ mem_len + 1 or not.  The vocabulary is cut
    into equal clusters, and embeddings are projected if they were.
    """
    sizes = {
        name: min(value, largest)
        for name, largest in _LARGEST.items()
        if (value := getattr(config, name)) is not None
    }
    if config.attn_window is not None:
        within = config.attn_window <= config.mem_len + 1
        longest = sizes["mem_len"] + (1 if within else 2)
        sizes["attn_window"] = min(config.attn_window, longest)
    n_clusters = min(len(config.clusters), _MOST_CUTOFFS + 1)
    return replace(
        config,
        **sizes,
        cutoffs=tuple(sizes["vocab_size"] * i // n_clusters for i in range(1, n_clusters)),
        div_val=min(config.div_val, _DIV_VAL),
        d_embed=_D_EMBED if config.has_projections else None,
        tie_projs=config.tie_projs[:n_clusters],
        init_std=_INIT_STD,
        proj_init_std=_INIT_STD,
    )
