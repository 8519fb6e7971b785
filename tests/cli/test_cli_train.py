"""npxl train: folders, resuming, interruptions."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

from command_lines import SMALL, command, snapshot

from npxl.cli import main


def test_without_out_a_free_folder_is_chosen_and_named(here, capsys):
    for n in (1, 2):
        assert main(["train", "text.txt", *SMALL, "--steps", "1"]) == 2  # steps given twice
        assert main(["train", "text.txt", "--preset", "tiny", "--steps", "1"]) == 0
        assert f"runs/text-{n}" in capsys.readouterr().out
        assert Path(f"runs/text-{n}/last.safetensors").is_file()


def test_resume_trains_longer_and_takes_nothing_else_from_the_command(here, capsys):
    before = snapshot(here)
    assert main(["train", "--out", "runs/small", "--resume", "--lr", "1", "--n-layer", "3"]) == 2
    assert "--n-layer, --lr cannot be given with --resume" in capsys.readouterr().err
    assert main(["train", "--resume"]) == 2
    assert "--out" in capsys.readouterr().err
    assert snapshot(here) == before
    assert main(["train", "--out", "runs/small", "--resume", "--steps", "40"]) == 0
    assert "step     40" in capsys.readouterr().out


def test_one_repeated_symbol_is_refused(here, capsys):
    Path("a.txt").write_text("a" * 3_000_000)
    for vocabulary in ("bytes", "characters"):
        assert main(["train", "a.txt", "--out", "a", "--vocabulary", vocabulary]) == 2
        assert "is 'a' 2,700,000 times" in capsys.readouterr().err
        assert not Path("a").exists()
    # One other symbol, however late, makes a text of it.
    Path("a.txt").write_text("a" * 2_699_999 + "b" + "a" * 300_000)
    assert main(["train", "a.txt", "--out", "a", "--preset", "tiny", "--steps", "1"]) == 0


def test_ctrl_c_saves_and_the_run_can_be_resumed(here, capsys):
    process = command("train", "text.txt", "--out", "r", "--preset", "tiny", "--steps", "1000000")
    process.stdout.readline()
    process.stdout.readline()  # the first line of metrics: it is training
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"npxl train --out r --resume" in out
    assert err == b""
    assert main(["info", "r", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert main(["train", "--out", "r", "--resume", "--steps", str(step + 1)]) == 0


def test_a_second_process_is_told_that_the_run_is_being_trained(here, capsys):
    process = command("train", "text.txt", "--out", "r", "--preset", "tiny", "--steps", "1000000")
    process.stdout.readline()
    process.stdout.readline()  # the first line of metrics: it is training
    assert main(["train", "--out", "r", "--resume"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"npxl: The run r is being trained already: [^\n]+\n", err)
    process.kill()
    process.communicate(timeout=60)
    assert main(["info", "r", "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step"]
    assert main(["train", "--out", "r", "--resume", "--steps", str(step + 1)]) == 0
