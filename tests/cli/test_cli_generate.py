"""npxl generate: the text that the library draws, streamed."""

from __future__ import annotations

import os
import re
import signal

from command_lines import SMALL, command

import npxl
import npxl.audit
from npxl.cli import main
from npxl.inference import generate


def test_generate_prints_the_text_that_the_library_draws(here, capsys):
    words = ["--prompt", "aba", "--tokens", "50", "--seed", "3", "--temperature", "0.8"]
    words += ["--top-k", "5", "--top-p", "0.9"]
    assert main(["generate", "runs/small", *words]) == 0
    out, err = capsys.readouterr()
    model = npxl.load("runs/small/best.safetensors")
    drawn = generate(model, list(b"aba"), 50, 0.8, 5, 0.9, seed=3)
    assert out == "aba" + bytes(g.token for g in drawn).decode("utf-8", "replace")
    assert re.fullmatch(r"50 tokens in [\d.]+ s, [\d,]+ a second\n", err)


def test_generate_without_a_prompt_begins_after_a_newline(here, capsys):
    assert main(["generate", "runs/small", "--tokens", "20", "--temperature", "0"]) == 0
    model = npxl.load("runs/small/best.safetensors")
    drawn = generate(model, list(b"\n"), 20, temperature=0)
    assert capsys.readouterr().out == bytes(g.token for g in drawn).decode("utf-8", "replace")


def test_an_empty_text_is_not_the_bundled_one(here, capsys):
    for words in (["train", ""], ["eval", "runs/small", ""]):
        assert main(words) == 2
        assert "no file or folder ''" in capsys.readouterr().err


def test_generate_after_spaces_that_are_no_words_begins_after_a_newline(here, capsys):
    assert main(["train", "text.txt", "--out", "words", "--vocabulary", "words", *SMALL]) == 0
    capsys.readouterr()
    texts = []
    for prompt in ("", "\u2003 "):
        assert main(["generate", "words", "--tokens", "9", "--prompt", prompt]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != ""


def test_generate_names_the_symbols_that_the_vocabulary_lacks(here, capsys, monkeypatch):
    assert main(["train", "text.txt", "--out", "c", "--vocabulary", "characters", *SMALL]) == 0
    capsys.readouterr()
    assert main(["generate", "c", "--prompt", "abXYX", "--tokens", "9"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("ab\ufffd\ufffd\ufffd")
    assert "lacks 'X', 'Y';" in err
    assert len(out) == 5 + 9
    assert main(["generate", "c", "--prompt", "日本\t\u200b", "--tokens", "0"]) == 0
    out, err = capsys.readouterr()
    assert out == "\ufffd" * 4
    assert err.startswith(r"The run's vocabulary lacks '日', '本', '\t', '\u200b';")
    assert err.count("\n") == 1  # and no speed
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    _, err = command("generate", "c", "--prompt", "日", "--tokens", "0").communicate(timeout=60)
    assert err.startswith(rb"The run's vocabulary lacks '\u65e5';")


def test_generate_streams_and_ends_quietly_when_nobody_reads_on(here):
    process = command("generate", "runs/small", "--tokens", "1000000")
    assert len(process.stdout.read(30)) == 30  # long before a million
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert process.stderr.read() == b""


def test_generate_ends_quietly_on_ctrl_c(here):
    process = command("generate", "runs/small", "--tokens", "1000000")
    process.stdout.read(30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err == b""


def test_ctrl_c_does_not_end_generate_in_the_middle_of_a_token(here, monkeypatch, capsys):
    whole = []

    def interrupted(*arguments):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            whole.append("a compiler would complain when it ends here")
            yield npxl.inference.generation.Generated(ord("a"), 0.0)

    monkeypatch.setattr(npxl.inference, "generate", interrupted)
    assert main(["generate", "runs/small", "--tokens", "2"]) == 130
    assert capsys.readouterr().out == "a"
    assert len(whole) == 1
