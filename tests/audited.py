"""What the tests of an audit's sections share: rows of one check, and configurations to check."""

import pytest

from npxl.audit.frame import Subject
from npxl.config import config_of

CONFIGS = {
    "default": {},
    "window": dict(mem_len=64, attn_window=65, clamp_len=40, ext_len=3, pre_lnorm=True),
    "wide": dict(mem_len=20, attn_window=90, untie_r=True, initial_memory="zeros"),
    "no memory": dict(mem_len=0, n_layer=1, dropout=0.1),
    "clusters": dict(
        vocab_size=999, cutoffs=(40, 300), div_val=2, tie_projs=(False, True, True),
        dropout=0.1, dropatt=0.1,
    ),
    "shaw": dict(attn_type="shaw", clamp_len=90, mem_len=30, attn_window=31),
    "vaswani": dict(attn_type="vaswani", mem_len=30),
    "al-rfou": dict(attn_type="al-rfou", clamp_len=90, pre_lnorm=True, ext_len=2),
    "vanilla": dict(attn_type="al-rfou", clamp_len=127, mem_len=0, pre_lnorm=True, dropout=0.1),
    "lstm": dict(architecture="lstm", n_layer=3, dropout=0.1),
    "lstm of clusters": dict(
        architecture="lstm", n_layer=1, vocab_size=999, cutoffs=(40, 300), div_val=2,
        tie_projs=(False, True, True),
    ),
}  # fmt: skip
LSTM = CONFIGS["lstm"]

every_config = pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)


def rows_of(section, name, options=None, seed=0):
    """The rows of one check, by name."""
    (check,) = (check for check in section.checks if check.name == name)
    options = {"architecture": "transformer_xl", **(options or {})}
    subject = Subject(config_of(options.pop("architecture"), options), seed)
    return {result.name: result for result in check.run(subject, lambda done, total: None)}


def wrong_rows(section, options=None, seed=0):
    """Rows of all checks of a section that are wrong, by CHECK: ROW."""
    return [
        f"{check.name}: {name}: {row.figures} {row.detail}"
        for check in section.checks
        for name, row in rows_of(section, check.name, options, seed).items()
        if not row.passed
    ]


def draw_all(section, checks, options=None):
    """The section's pictures of some checks, drawn."""
    figure = pytest.importorskip("matplotlib.figure")
    rows = {name: tuple(rows_of(section, name, options).values()) for name in checks}
    pictures = list(section.pictures(rows))
    for picture in pictures:
        canvas = figure.Figure(figsize=picture.size, layout="constrained")
        picture.draw(canvas)
        assert all(ax.has_data() for ax in canvas.axes)
    return pictures
