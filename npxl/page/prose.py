"""Text with equations as HTML, equations as MathML, which browsers show by themselves."""

from __future__ import annotations

import re

from markupsafe import Markup, escape

_PARTS = re.compile(r"\$([^$]+)\$|`([^`]+)`")
# What latex2mathml makes identifiers of, which have no space around them.
_RELATION = re.compile(r"<mi>(&#x0(?:21[9A-F]|27F)[0-9A-F];|:)</mi>")
_FUNCTION = re.compile(r"<mi>([a-z]{2,})</mi>")


def mathml(latex: str, display: bool = False) -> Markup:
    """An equation; its LaTeX is there for those who copy it or cannot see it."""
    from latex2mathml.converter import convert

    markup = convert(latex, display="block" if display else "inline")
    markup = _RELATION.sub(r"<mo>\1</mo>", markup)
    markup = _FUNCTION.sub(r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', markup)
    attributes = f'aria-label="{escape(latex)}" title="{escape(latex)}"'
    return Markup(markup.replace("<math ", f"<math {attributes} ", 1))


def prose(text: str) -> Markup:
    """A line of text with LaTeX between dollar signs and code between backticks."""
    parts, end = [], 0
    for match in _PARTS.finditer(text):
        parts.append(escape(text[end : match.start()]))
        latex, code = match.groups()
        parts.append(mathml(latex) if latex else Markup(f"<code>{escape(code)}</code>"))
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def paragraphs(text: str) -> Markup:
    """Paragraphs of such text, between empty lines."""
    return Markup("\n").join(
        Markup("<p>{}</p>").format(prose(" ".join(part.split()))) for part in text.split("\n\n")
    )
