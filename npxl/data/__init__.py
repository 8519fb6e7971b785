"""Texts as tokens: corpora, vocabularies and the streams that read them."""

from npxl.data.corpora import BUNDLED, Corpus, Split, load_corpus, load_whole
from npxl.data.streams import Streams
from npxl.data.vocabularies import (
    ByteVocabulary,
    CharacterVocabulary,
    Decoder,
    Vocabulary,
    WordVocabulary,
    vocabulary_from_dict,
)

__all__ = [
    "BUNDLED",
    "ByteVocabulary",
    "CharacterVocabulary",
    "Corpus",
    "Decoder",
    "Split",
    "Streams",
    "Vocabulary",
    "WordVocabulary",
    "load_corpus",
    "load_whole",
    "vocabulary_from_dict",
]
