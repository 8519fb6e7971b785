"""Texts as tokens: corpora, vocabularies and the streams that read them."""

from npxl.data.corpora import BUNDLED, Corpus, Split, load_corpus, load_whole
from npxl.data.streams import ShuffledStreams, Streams
from npxl.data.vocabularies import (
    ByteVocabulary,
    CharacterVocabulary,
    Decoder,
    SubwordVocabulary,
    SymbolVocabulary,
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
    "ShuffledStreams",
    "Split",
    "Streams",
    "SubwordVocabulary",
    "SymbolVocabulary",
    "Vocabulary",
    "WordVocabulary",
    "load_corpus",
    "load_whole",
    "vocabulary_from_dict",
]
