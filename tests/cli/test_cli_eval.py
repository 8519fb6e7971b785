"""npxl eval: scores of every token, of this or another text."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_lines import SMALL

import npxl
import npxl.audit
from npxl.cli import main
from npxl.inference import evaluate


def test_eval_reports_the_scores_of_every_token(here, capsys):
    assert main(["eval", "runs/small", "--json"]) == 0
    out, err = capsys.readouterr()
    values = json.loads(out)
    assert err == ""
    names = ["split", "unit", "tokens", "nll", "bpc", "bpb", "ppl", "tokens_per_second"]
    assert list(values) == names

    text = Path("text.txt").read_bytes()
    tokens = np.frombuffer(text[len(text) * 95 // 100 :], np.uint8)
    model = npxl.load("runs/small/best.safetensors")
    expected = evaluate(model, tokens, tgt_len=8)
    assert values["split"] == "test"
    assert values["unit"] == "bpc"
    assert values["tokens"] == expected.tokens == len(tokens) - 1
    assert values["nll"] == pytest.approx(expected.nll, rel=1e-6)
    assert values["bpc"] == values["bpb"] == pytest.approx(values["nll"] / math.log(2))
    assert values["ppl"] == pytest.approx(math.exp(values["nll"]))


def test_eval_reads_with_another_memory_window_and_segment_length(here, capsys):
    options = ["--mem-len", "20", "--attn-window", "6", "--clamp-len", "3", "--tgt-len", "5"]
    assert main(["eval", "runs/small", "--split", "valid", *options, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    text = Path("text.txt").read_bytes()
    tokens = np.frombuffer(text[len(text) * 9 // 10 : len(text) * 95 // 100], np.uint8)
    model = npxl.load("runs/small/best.safetensors")
    model = model.reconfigured(mem_len=20, attn_window=6, clamp_len=3)
    assert values["nll"] == pytest.approx(evaluate(model, tokens, 5).nll, rel=1e-6)


def test_eval_as_a_table_and_on_another_text(here, capsys):
    Path("other").mkdir()
    Path("other/train.txt").write_text("x\n" * 20)
    Path("other/test.txt").write_text("abba é\n")
    assert main(["eval", "runs/small", "other", "--checkpoint", "last"]) == 0
    out = capsys.readouterr().out
    # é takes two bytes: eight bytes, seven of them predicted, for six characters.
    assert re.search(r"tokens +7\n", re.sub(r" +\n", "\n", out))
    numbers = dict(re.findall(r"(bits per \w+) +([\d.]+)", out))
    assert float(numbers["bits per character"]) == pytest.approx(
        float(numbers["bits per byte"]) * 7 / 6, rel=1e-4
    )


@pytest.mark.fault("HF #466", "HF #2000", "HF #4459")
def test_eval_counts_what_the_vocabulary_lacks(here, capsys):
    assert main(["train", "text.txt", "--out", "w", "--vocabulary", "words", *SMALL]) == 0
    Path("other").mkdir()
    Path("other/train.txt").write_text("abba\nbar\n")
    Path("other/test.txt").write_text("abba new bar newer\n")
    capsys.readouterr()
    assert main(["eval", "w", "other", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "2 of 5 tokens are not in the run's vocabulary" in err
    assert json.loads(out)["tokens"] == 4


@pytest.mark.fault("KY #25")
def test_eval_of_a_whole_file_is_one_stretch_and_of_a_folder_file_by_file(here, capsys):
    Path("short.txt").write_text("abba dad")
    assert main(["eval", "runs/small", "short.txt"]) == 2  # as 5 % of it are nothing
    capsys.readouterr()
    model = npxl.load("runs/small/best.safetensors")

    def expected(*texts):
        scores = [evaluate(model, np.frombuffer(text, np.uint8), tgt_len=8) for text in texts]
        n_tokens = sum(score.tokens for score in scores)
        return n_tokens, sum(score.nll * score.tokens for score in scores) / n_tokens

    def scored(*words):
        assert main(["eval", "runs/small", *words, "--split", "all", "--json"]) == 0
        values = json.loads(capsys.readouterr().out)
        assert values["split"] == "all"
        assert values["ppl"] == pytest.approx(math.exp(values["nll"]))
        assert values["bpc"] == values["bpb"] == pytest.approx(values["nll"] / math.log(2))
        return values["tokens"], values["nll"]

    assert scored("short.txt") == pytest.approx(expected(b"abba dad"), rel=1e-6)
    whole = Path("text.txt").read_bytes()
    assert scored() == pytest.approx(expected(whole), rel=1e-6)
    Path("folder").mkdir()
    Path("folder/test.txt").write_text("a bar")
    Path("folder/train.txt").write_text("cab dad cab")
    assert scored("folder") == pytest.approx(expected(b"cab dad cab", b"a bar"), rel=1e-6)
    assert main(["eval", "runs/small", "short.txt", "--split", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["text", "short.txt"], ["split", "all"], ["scored", "in", "bits", "per", "character"],
        ["tokens", "7"],
    ]  # fmt: skip


def test_a_text_that_has_moved_is_wanted_and_can_be_named(here, capsys):
    assert main(["train", "text.txt", "--out", "a run", *SMALL]) == 0
    Path("text.txt").rename("moved.txt")
    capsys.readouterr()
    for words in (["eval", "a run"], ["train", "--out", "a run", "--resume"]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert f"not at {here / 'text.txt'} any more" in err
        assert "npxl eval 'a run' TEXT or npxl train TEXT --out 'a run' --resume" in err
    assert main(["eval", "a run", "moved.txt"]) == 0
    more = ["--out", "a run", "--resume", "--steps", "40"]
    Path("other.txt").write_text("another text " * 99)
    assert main(["train", "other.txt", *more]) == 2
    assert "other.txt is not, or no longer, the one" in capsys.readouterr().err
    assert main(["train", "moved.txt", *more]) == 0
    assert "step     40" in capsys.readouterr().out


def test_a_text_that_has_changed_can_be_scored_as_it_is_now(here, capsys):
    assert main(["train", "text.txt", "--out", "r", *SMALL]) == 0
    with open("text.txt", "a") as file:
        file.write("more")
    capsys.readouterr()
    for split in ("test", "all"):
        assert main(["eval", "r", "--split", split]) == 2
        hint = capsys.readouterr().err.rstrip().rstrip(".").split("now: ")[1]
        assert main([*shlex.split(hint)[1:], "--split", split]) == 0
        capsys.readouterr()


def test_eval_of_a_diverged_model_is_valid_json_and_exit_code_1(here, capsys):
    model = npxl.load("runs/small/best.safetensors")
    model.params.flat[:] = np.nan
    model.save("runs/small/best.safetensors")
    assert main(["eval", "runs/small", "--json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out, parse_constant=pytest.fail)["nll"] is None
    assert "diverged" in err
