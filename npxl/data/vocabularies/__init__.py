"""Vocabularies: what a token is, as bytes, characters, words or subwords."""

from __future__ import annotations

from typing import Any

from npxl.config import VocabularyKind
from npxl.data.vocabularies.base import Decoder, Grain, Ids, Vocabulary
from npxl.data.vocabularies.byte_level import ByteVocabulary, SymbolVocabulary
from npxl.data.vocabularies.characters import CharacterVocabulary
from npxl.data.vocabularies.subwords import SubwordVocabulary
from npxl.data.vocabularies.words import WordVocabulary
from npxl.datasets import ANY_WORDS, WordRule
from npxl.errors import NpxlError

__all__ = [
    "VOCABULARIES",
    "ByteVocabulary",
    "CharacterVocabulary",
    "Decoder",
    "Grain",
    "Ids",
    "SubwordVocabulary",
    "SymbolVocabulary",
    "Vocabulary",
    "WordVocabulary",
    "vocabulary_from_dict",
]

VOCABULARIES: dict[VocabularyKind, type[Vocabulary]] = {
    vocabulary.kind: vocabulary
    for vocabulary in (
        ByteVocabulary,
        CharacterVocabulary,
        WordVocabulary,
        SymbolVocabulary,
        SubwordVocabulary,
    )
}
"""By what a token is."""


def vocabulary_from_dict(values: dict[str, Any]) -> Vocabulary:
    """The vocabulary that `Vocabulary.to_dict` described.

    Raises
    ------
    NpxlError
        When `values` describe no vocabulary.
    """
    match values:
        case {"kind": "bytes"}:
            return ByteVocabulary()
        case {"kind": "symbols", "symbols": list(symbols)} if all(
            type(s) is int and 0 <= s < 256 for s in symbols
        ):
            return SymbolVocabulary(bytes(symbols))
        case {"kind": "characters", "alphabet": str(alphabet)}:
            return CharacterVocabulary(alphabet)
        case {"kind": "words", "words": list(words)} if all(isinstance(w, str) for w in words):
            return WordVocabulary(tuple(words), _rule(values.get("rule", {})))
        case {"kind": "subwords", "tokenizer": dict(tokenizer)}:
            return SubwordVocabulary.from_json(tokenizer)
    raise NpxlError(
        "A vocabulary was expected, of bytes, symbols (with their list), characters (with its "
        "alphabet), words (with its list of words) or subwords (with their tokenizer), but the "
        f"description is of kind {values.get('kind')!r}."
    )


def _rule(values: Any) -> WordRule:
    if not isinstance(values, dict) or not all(
        type(value) is type(getattr(ANY_WORDS, name, None)) for name, value in values.items()
    ):
        raise NpxlError(f"A vocabulary's rule for words is not understood: {values!r}.")
    return WordRule(**values)
