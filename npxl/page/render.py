"""Templates filled in."""

from __future__ import annotations

from typing import Any

from npxl.page.pictures import svg
from npxl.page.prose import mathml, paragraphs, prose


def render(template: str, **values: Any) -> str:
    """A page, from a file in `templates`, whose text is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("npxl.page"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(mathml=mathml, prose=prose, paragraphs=paragraphs, svg=svg)
    return environment.get_template(template).render(**values)
