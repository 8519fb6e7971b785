"""A full disk, an output that ends or that nobody reads, other encodings, interruptions."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command_lines import SMALL, command, snapshot

import npxl
import npxl.audit
from npxl import NpxlError
from npxl.cli import main
from npxl.inference.evaluation import Reading


def test_a_full_disk_leaves_nothing_behind(here):
    resource = pytest.importorskip("resource")
    before = snapshot(here)
    process = command(
        "train", "text.txt", "--out", "new",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert re.fullmatch(rb"npxl: There is no room left [^\n]+\n", err)
    assert snapshot(here) == before


@pytest.mark.parametrize("words", [[], ["--sliding", "4"], ["--json"]])
def test_an_evaluation_that_is_stopped_says_that_there_is_no_score(
    here, monkeypatch, capsys, words
):
    read = Reading.score

    def interrupted(self, *arguments):
        monkeypatch.setattr(Reading, "score", read)
        os.kill(os.getpid(), signal.SIGINT)
        return read(self, *arguments)

    monkeypatch.setattr(Reading, "score", interrupted)
    assert main(["eval", "runs/small", "--workers", "1", *words]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "Stopped before all of the text was scored: there is no score.\n"


@pytest.mark.parametrize("words", [["info"], ["train", "--help"], ["generate", "runs/small"]])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_output_that_cannot_be_written_is_one_sentence(here, words):
    environment = {**os.environ, "PYTHONPATH": str(Path(npxl.__file__).parents[1])}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "npxl", *words], stdout=full, stderr=subprocess.PIPE,
            env=environment, timeout=60,
        )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(rb"npxl: The output cannot be written: [^\n]+\n", done.stderr)


@pytest.mark.skipif(os.name != "posix", reason="file descriptors are inherited otherwise")
def test_output_that_nobody_opened_is_discarded(here):
    for closed in ((1,), (1, 2)):
        process = command(
            "eval", "runs/small", preexec_fn=lambda closed=closed: [os.close(fd) for fd in closed]
        )
        assert process.communicate(timeout=60) == (b"", b"")
        assert process.returncode == 0


@pytest.mark.parametrize(
    "words",
    ["", "--version", "train --help", "eval runs/small", "eval runs/small --json", "info",
     "info runs/small", "generate runs/small", "audit --only gradients/one-token"],
)  # fmt: skip
def test_a_command_ends_quietly_when_nobody_reads_on(here, words):
    process = command(*words.split())
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0


def test_training_goes_on_when_nobody_reads_on(here, capsys):
    process = command("train", "text.txt", "--out", "r", *SMALL)
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 0
    assert snapshot(here / "r").keys() == snapshot(here / "runs" / "small").keys()
    assert (here / "r/last.safetensors").read_bytes() == (
        here / "runs/small/last.safetensors"
    ).read_bytes()


def test_an_error_that_nobody_reads_keeps_its_exit_code(here):
    process = command("train", "missing.txt")
    process.stderr.close()
    assert process.wait(timeout=60) == 2


def test_ctrl_c_of_training_that_nobody_reads_keeps_its_exit_code(here):
    process = command("train", "text.txt", "--out", "r", "--preset", "tiny", "--steps", "1000000")
    process.stdout.readline()
    process.stdout.close()
    metrics = here / "r" / "metrics.jsonl"
    while metrics.read_bytes().count(b"\n") < 2:  # the second is printed to nobody
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == b""
    assert process.wait(timeout=60) == 130


@pytest.mark.skipif(os.name != "posix", reason="a working folder cannot be deleted")
def test_a_deleted_working_folder_is_one_sentence(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["train", "--steps", "1"]) == 2
    assert capsys.readouterr().err == (
        "npxl: The working folder has been deleted: change to another one.\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="paths are Unicode elsewhere")
def test_paths_need_not_be_utf8(here, capsys):
    name = os.fsdecode(b"caf\xe9")
    shutil.copy("text.txt", name)
    assert main(["train", name, "--out", f"runs/{name}", *SMALL]) == 0
    capsys.readouterr()
    assert main(["info", f"runs/{name}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["corpus"]["source"] == str(here / name)


@pytest.mark.parametrize("words", [["info", "--json"], ["train", "--help"], ["info", "runs/small"]])
def test_any_encoding_will_do(here, monkeypatch, words):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setenv("COLUMNS", "20")
    assert main(words) == 0
    assert sys.stdout.buffer.getvalue()


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(*arguments, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(npxl.audit, "audit", broken)
    with pytest.raises(ZeroDivisionError):
        main(["audit"])


def test_the_errors_of_the_library_are_those_of_the_command(here, capsys):
    with pytest.raises(NpxlError) as error:
        npxl.load_corpus("missing.txt")
    main(["train", "missing.txt"])
    assert capsys.readouterr().err == f"npxl: {error.value}\n"


def test_output_that_cannot_show_a_symbol_replaces_it(here, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert main(["generate", "runs/small", "--prompt", "é", "--tokens", "1"]) == 0
    assert stdout.buffer.getvalue().startswith(b"?")
