"""Figures as SVG that is part of a page, and takes the page's colours, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape


@dataclass(frozen=True)
class Picture:
    """What a page shows beside numbers.

    Parameters
    ----------
    title, caption
        Above and below; mathematics in LaTeX between dollar signs.
    alternative
        What is to be seen, in words, for those who cannot see it.
    draw
        Draws into an empty `matplotlib.figure.Figure`.
    size
        Width and height in inches, of 100 pixels each.
    """

    title: str
    caption: str
    alternative: str
    draw: Callable[[Any], None]
    size: tuple[float, float] = (7.0, 3.6)


INK = "#010101"
"""Drawn in this, lines and text have the colour of the page's text."""
SERIES = ("#a00001", "#a00002", "#a00003", "#a00004", "#a00005")
"""The colours of lines, bars and points in their order: C0 to C4."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",
    "svg.hashsalt": "npxl",
    "font.size": 10,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.facecolor": "none",
    "legend.edgecolor": "none",
    "savefig.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.alpha": 0.2,
    "grid.linewidth": 0.8,
    **dict.fromkeys(
        (
            "text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color",
            "ytick.color", "grid.color", "legend.labelcolor", "hatch.color",
        ),
        INK,
    ),
}  # fmt: skip


def svg(picture: Picture) -> Markup:
    """The picture as an element of a page."""
    import matplotlib
    from cycler import cycler
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_STYLE, "axes.prop_cycle": cycler(color=SERIES)}):
        figure = Figure(figsize=picture.size, dpi=100, layout="constrained")
        picture.draw(figure)
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*">', "<g>", text)  # a page has several figures: no name twice
    text = text.replace(INK, "currentColor")
    for n, colour in enumerate(SERIES):
        text = text.replace(colour, f"var(--series-{n})")
    label = f'<svg role="img" aria-label="{escape(picture.alternative)}" '
    return Markup(text.replace("<svg ", label, 1))
