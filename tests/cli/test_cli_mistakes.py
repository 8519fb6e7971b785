"""One sentence for every mistake, which changes nothing."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from command_lines import command, snapshot

import npxl
import npxl.audit
from npxl import ModelConfig
from npxl.cli import main


@pytest.fixture
def mistakes(here):
    """Files that are wrong in every way."""
    Path("empty.txt").touch()
    Path("one.txt").write_text("a")
    Path("latin.txt").write_bytes(b"caf\xe9 " * 100)
    Path("continued.txt").write_bytes(b"\x80" * 1000)
    Path("endless").mkdir()
    Path("endless/train.txt").write_text("abba cab\n" * 9)
    Path("endless/valid.txt").write_text("a")
    Path("folder").mkdir()
    Path("folder/test.txt").write_text("text without training text\n" * 9)
    Path("untested").mkdir()
    Path("untested/train.txt").write_text("abba\n" * 9)
    Path("unknown.toml").write_text("n_layers = 3\n")
    Path("misplaced.toml").write_text("[train]\nmem_len = 3\n")
    Path("nested.toml").write_text("steps = " + "[" * 100_000)
    Path("syntax.toml").write_text("n_layer 3\n")
    Path("string.toml").write_text('cutoffs = "3"\n')
    Path("wrong.toml").write_text('n_layer = "three"\n')
    Path("both.toml").write_text("steps = 3\nminutes = 2\n")
    whole = Path("runs/small/last.safetensors").read_bytes()
    for name, contents in (
        ("truncated", whole[: len(whole) // 2]),
        ("garbage", b"what is this" * 99),
        ("foreign", safetensors.numpy.save({"weight": np.zeros(3)})),
    ):
        shutil.copytree("runs/small", f"runs/{name}")
        for file in ("last.safetensors", "best.safetensors"):
            Path("runs", name, file).write_bytes(contents)
    shutil.copytree("runs/small", "runs/torn")
    Path("runs/torn/run.json").write_text('{"format": 1')
    shutil.copytree("runs/small", "runs/mixed")
    config = ModelConfig(n_layer=1, n_head=1, d_model=2, d_head=2, d_inner=2)
    npxl.TransformerXL(config).save("runs/mixed/best.safetensors")
    shutil.copytree("runs/small", "runs/alien")
    Path("runs/alien/vocabulary.json").write_text('{"kind": "characters", "alphabet": "abc"}')
    shutil.copytree("runs/small", "runs/nested")
    Path("runs/nested/vocabulary.json").write_text("[" * 100_000)
    return here


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("train empty.txt", "empty.txt is empty"),
        ("train one.txt", "one.txt is too short"),
        ("train latin.txt --vocabulary characters", "latin.txt.*UTF-8"),
        ("train latin.txt --vocabulary words", "latin.txt.*UTF-8"),
        ("train missing.txt", "no file or folder 'missing.txt'"),
        ("train folder", "train"),
        ("train text.txt --mem-len -1", "mem_len is -1"),
        ("train text.txt --d-model 15", "d_model is 15, but it must be even"),
        ("train text.txt --dropout 1", "dropout is 1.0"),
        ("train text.txt --lr nan", "lr is nan"),
        ("train text.txt --n-layer 1.5", 'n-layer: "1.5" is not a whole number'),
        ("train text.txt --attn-window 1.5", 'attn-window: "1.5" is not a whole number'),
        ("train text.txt --attn-window 99999999999999999999", "attn_window is 9+, but .* at most"),
        ("train text.txt --n-head 2000000000 --d-model 2000000000", "not enough memory"),
        ("train ~nobody/text.txt", "no file or folder '~nobody/text.txt'"),
        ("train continued.txt", "continued.txt has no characters"),
        ("train endless --vocabulary words", "valid.txt has no characters"),
        ("train text.txt --n-layer two", "--n-layer.*two"),
        ("train text.txt --dtype float16", "float16"),
        ("train text.txt --n-layers 2", "--n-layers.*--n-layer"),
        ("train text.txt more.txt", "more.txt"),
        ("train text.txt --preset=", "no preset ''"),
        ("train text.txt --preset huge", "'huge'.*enwik8-base"),
        ("train text.txt --vocab-size 99", "vocab_size is 99, but text.txt has 256"),
        (
            "train text.txt --vocab-size 2 --cutoffs 3",
            r"cutoffs is \(3,\).*less than vocab_size, 2",
        ),
        ("train text.txt --cutoffs 9 999", "cutoffs are 9, 999, but text.txt has only 256 symbols"),
        ("train text.txt --cutoffs 9 9", "cutoffs is .*ascending order"),
        ("train text.txt --cutoffs 9.5", 'cutoffs: "9.5" is not a whole number'),
        ("train text.txt --cutoffs 9 --div-val 2 --tie-projs maybe", '"maybe" for --tie-projs'),
        ("train text.txt --cutoffs 9 --tie-projs false true", "no projections to tie"),
        ("train text.txt --cutoffs 9 --div-val 2 --tie-projs true", "each of the 2 clusters"),
        ("train text.txt --config string.toml", "cutoffs is '3', but it must be a list"),
        ("train text.txt --steps 3 --minutes 2", "steps is 3 and minutes is 2"),
        ("train text.txt --config missing.toml", "missing.toml.*cannot be read"),
        ("train text.txt --config unknown.toml", "sets 'n_layers'.*n_layer"),
        ("train text.txt --config misplaced.toml", r"table \[train\] has no such option"),
        ("train text.txt --config syntax.toml", "syntax.toml .*not TOML"),
        ("train text.txt --config nested.toml", "nested.toml .*not TOML"),
        ("train text.txt --config wrong.toml", "n_layer is 'three'"),
        ("train text.txt --config both.toml", "only one of them"),
        ("train text.txt --out runs/small", "exists.*--resume"),
        ("train text.txt --out text.txt/run", "text.txt"),
        ("train --out runs/none --resume", "no run in runs/none"),
        ("train --out runs/truncated --resume", "last.safetensors is damaged"),
        ("train --out runs/garbage --resume", "last.safetensors is damaged"),
        ("train --out runs/foreign --resume", "npxl did not write it"),
        ("train --out runs/torn --resume", "run.json cannot be read as JSON"),
        ("train --out runs/small --resume --steps 3", "has made 30"),
        ("eval", "RUN"),
        ("eval runs/none", "no run in runs/none"),
        ("eval runs/truncated", "best.safetensors is damaged"),
        ("eval runs/foreign", "npxl did not write it"),
        ("eval runs/small --split dev", "no split 'dev'.*train, valid, test"),
        ("eval runs/small untested", "no split 'test'"),
        ("eval runs/small missing.txt", "missing.txt"),
        ("eval runs/small --mem-len -1", "mem_len is -1"),
        ("eval runs/small --tgt-len 0", "tgt_len is 0"),
        ("eval runs/small --tgt-len 99999999999999999999", "tgt_len is 9+, but .* at most"),
        ("eval runs/small --mem-len 99999999999999999999", "mem_len is 9+, but .* at most"),
        ("eval runs/small --workers 1.5", "not a whole number"),
        ("eval runs/alien", "vocabulary.json does not belong to this run"),
        ("eval runs/mixed", "best.safetensors does not belong to this run"),
        ("eval runs/small --workers 0", "workers is 0"),
        ("eval runs/small --n-layer 3", "--n-layer"),
        ("generate runs/none", "no run in runs/none"),
        ("generate runs/garbage", "best.safetensors is damaged"),
        ("generate runs/alien", "vocabulary.json does not belong to this run"),
        ("generate runs/nested", "vocabulary.json cannot be read as JSON"),
        ("generate runs/small --mem-len 99999999999999999999", "mem_len is 9+, but .* at most"),
        ("generate runs/small --tokens 1.5", "not a whole number"),
        ("generate runs/small --temperature -1", "temperature is -1"),
        ("generate runs/small --top-k 0", "top_k is 0"),
        ("generate runs/small --top-p 2", "top_p is 2"),
        ("generate runs/small --tokens -1", "number of tokens is -1"),
        ("generate runs/small --seed -1", "seed is -1"),
        ("audit runs/small --preset tiny", "RUN, or"),
        ("audit --seed -1", "--seed"),
        ("audit --preset huge", "'huge'"),
        ("audit --only", "--only needs the name of a section"),
        ("info runs/small --preset tiny", "not both"),
        ("info runs/truncated", "last.safetensors is damaged"),
        ("info --preset huge", "'huge'"),
        ("study", "Say which studies to run, or --all: reach"),
        ("study --all reach", "--all is every study: leave it out, or leave out reach"),
        ("study atention", "no study 'atention'; choose from reach"),
        ("study attention --corpus nowhere", "nowhere"),
        ("study speed --corpus text.txt", "The study speed reads no text: leave out --corpus"),
        ("compose", "compose"),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(mistakes, capsys, words, message):
    before = snapshot(mistakes)
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"npxl: [^\n]+\n", err)
    assert re.search(message, err)
    assert snapshot(mistakes) == before


def test_a_process_ends_with_exit_code_2_without_a_traceback(here):
    process = command("train", "missing.txt")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"npxl: There is no file")
    assert err.count(b"\n") == 1
