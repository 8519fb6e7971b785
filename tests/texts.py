"""Texts that tests read: real ones where they are, and files written for the occasion."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from npxl.datasets import DATASETS

BESIDE = Path(__file__).parents[1] / ".." / "shared" / "data"
LINE = "In the beginning God created the heaven and the earth, as it is written. é\n"
LM1B = DATASETS["lm1b"].layout
SENTENCES = ["the cat sat on the mat .", "a dog sat .", "the dog and the cat sat on a mat", "dogs"]
WORDS = ["<unk>", "[PAD]", "the", "cat", "sat", "on", "mat", ".", "<eos>"]
DATA = Path(os.environ.get("NPXL_TEST_DATA") or BESIDE)


def real(name):
    """A benchmark's text, which this repository may not contain.

    It is looked for in the folder that the environment variable NPXL_TEST_DATA names, or else in
    ../shared/data beside the repository; where it is missing, the test is skipped.
    """
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{name} is not at {DATA}, the folder of NPXL_TEST_DATA")
    return path


def written(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    return path


def one_file(path, dataset, contents):
    return written(path / DATASETS[dataset].layout.name, contents)


def folder_of_splits(path, dataset, **texts):
    for split, text in texts.items():
        written(path / DATASETS[dataset].layout.patterns[split][0], text)
    return path


def shards(path, texts, held_out):
    for i, text in enumerate(texts, start=1):
        name = LM1B.patterns["train"][0].replace("*", f"{i:05}-of-00100")
        written(path / name, text)
    written(path / LM1B.patterns["valid"][0], held_out)
    return path


def lines(n, seed=0):
    """Sentences of few words, always the same."""
    picks = np.random.default_rng(seed).choice(SENTENCES, n)
    return "".join(f" {line} \n" for line in picks)


def make(name, folder):
    """A small text in the files of a dataset; returns what CORPUS is."""
    if name in ("enwik8", "text8"):
        text = lines(300) if name == "enwik8" else lines(300).replace("\n", "").replace(".", "x")
        return one_file(folder, name, text)
    train, valid, test = lines(200), lines(20, seed=1) + "the zebra sat\n", lines(20, seed=2)
    if name == "lm1b":
        return shards(folder, [train, lines(100, seed=3)], valid)
    return folder_of_splits(folder, name, train=train, valid=valid, test=test)


def word_level(**changes):
    """A tokenizer.json with a word a token, as the library writes it."""
    model = {
        "type": "WordLevel",
        "vocab": {w: i for i, w in enumerate(WORDS)},
        "unk_token": "<unk>",
    }
    first = {"Sequence": {"id": "A", "type_id": 0}}
    second = {"Sequence": {"id": "B", "type_id": 0}}
    end = {"SpecialToken": {"id": "<eos>", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": {
            "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0,
        },
        "padding": {
            "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1,
            "pad_type_id": 0, "pad_token": "[PAD]",
        },
        "added_tokens": [],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, end],
            "pair": [first, second],
            "special_tokens": {"<eos>": {"id": "<eos>", "ids": [8], "tokens": ["<eos>"]}},
        },
        "decoder": None,
        "model": {**model, **changes},
    }  # fmt: skip


def splits_of(corpus):
    """Those that there are."""
    return [split for split in (corpus.train, corpus.valid, corpus.test) if split is not None]


def entries(cache):
    """Names of all files in npxl's cache."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


only_on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")


def memory_growth(statement, small, large):
    """By how many KiB the most memory ever used grows from one `path` to another, in a process."""
    program = (
        "import re, sys\n"
        "from npxl import load_corpus\n"
        "def most():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
        "def use(path):\n"
        f"    {statement}\n"
        "    return most()\n"
        "print(-use(sys.argv[1]) + use(sys.argv[2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(small), str(large)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    return int(done.stdout)
