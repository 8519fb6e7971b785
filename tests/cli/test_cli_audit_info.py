"""npxl audit and npxl info."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from command_lines import SMALL, command, record

import npxl
import npxl.audit
from npxl import ModelConfig
from npxl.audit import sections
from npxl.audit.frame import Check, Result, Section
from npxl.audit.outcome import CheckOutcome
from npxl.cli import main
from npxl.config import to_dict
from npxl.models import segment_model
from npxl.presets import PRESETS


def test_audit_checks_the_configuration_of_a_run_and_fails_with_exit_code_1(here, monkeypatch):
    seen = []

    def audit(config, seed, console, only, command, trained, stop):
        assert (trained is not None) == ("runs/small" in command)
        seen.append((config, seed, list(only), " ".join(command)))
        section = sections.SECTIONS[0]
        rows = () if seed else (Result.of("a row", 0.0, 1.0),)  # nothing found is wrong
        outcomes = (CheckOutcome(section, section.checks[0], rows),)
        return npxl.audit.AuditReport(npxl.audit.Subject(config, seed), command, outcomes)

    monkeypatch.setattr(npxl.audit, "audit", audit)
    Path("options.toml").write_text("pre_lnorm = false\nlr = 0.5\n")
    assert main(["audit", "--html", "none"]) == 0
    assert main(["audit", "runs/small", "--only", "a", "b/c"]) == 0
    assert not list(here.rglob("*.html"))
    assert main(["audit", "--config", "options.toml", "--preset", "tiny", "--seed", "1"]) == 1
    run, tiny = record("runs/small")["model"], PRESETS["tiny"].model
    assert seen == [
        (PRESETS["default"].model, 0, [], "npxl audit"),
        (ModelConfig(**run), 0, ["a", "b/c"], "npxl audit runs/small"),
        (
            dataclasses.replace(tiny, pre_lnorm=False), 1, [],
            "npxl audit --preset tiny --config options.toml",
        ),
    ]  # fmt: skip

    # Where the report goes
    assert [path.name for path in here.rglob("*.html")] == ["audit.html"]
    assert "<title>FAILED: audit of --preset tiny" in Path("audit.html").read_text()
    assert main(["audit", "runs/small"]) == 0
    assert "<title>Passed: audit of runs/small" in Path("runs/small/audit.html").read_text()
    assert main(["audit", "runs/small", "--only", "a", "--html", "a.html", "--json"]) == 0
    assert Path("a.html").exists()
    seen.clear()
    Path("a.html").write_text("my own")
    assert main(["audit", "--html", "a.html"]) == 2  # before anything is checked
    assert seen == []


def test_an_audit_of_nothing_is_no_pass(here, capsys):
    assert main(["audit", "--only", "truncation/trained"]) == 2  # only a run has what was trained
    assert "Nothing was checked" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("words", [[], ["--json"]])
def test_an_audit_that_is_stopped_says_where_and_writes_no_report(
    here, monkeypatch, capsys, number, words
):
    def right(subject, progress):
        yield Result.of("a row", 0.0, 1.0)

    def stopped_at_a_row(subject, progress):
        os.kill(os.getpid(), number)
        yield from right(subject, progress)
        pytest.fail("the next row was asked for")

    def stopped_between_rows(subject, progress):
        os.kill(os.getpid(), number)
        progress(1, 2)
        yield from right(subject, progress)

    for run in (stopped_at_a_row, stopped_between_rows):
        checks = tuple(Check(name, "", "", each) for name, each in (("a", right), ("b", run)))
        section = Section("made-up", "Made up", "", (*checks, checks[0]))
        monkeypatch.setattr(npxl.audit.runner, "SECTIONS", (section,))
        assert main(["audit", "--html", "a.html", *words]) == 130
        out, err = capsys.readouterr()
        assert err == "Stopped in made-up/b, after 1 of 3 checks. No report was written.\n"
        assert ("a row" in out) == (not words)
        assert not Path("a.html").exists()


def test_audit_in_80_columns_of_any_encoding_is_whole(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    process = command("audit", "--only", "gradients/one-token", "structure", "--html", "a.html")
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, b"")
    lines = out.decode("ascii").splitlines()
    assert max(map(len, lines)) <= 80
    number = r"\d\.\de[+-]\d\d"
    row = rf"layers\.1\.attention\.w_r +{number} +{number} +{number} +2(\.0.)? +ok"
    assert sum(bool(re.fullmatch(row, line.rstrip())) for line in lines) == 1
    verdict = next(n for n, line in enumerate(lines) if line.startswith("Passed: "))
    assert "figures in 5 checks" in lines[verdict]
    assert lines[verdict + 1].startswith("seed 0; npxl ")
    assert f"numpy {np.__version__}, numba " in lines[verdict + 1]
    assert lines[-1] == "Report: a.html"


def test_audit_of_a_wrong_gradient_says_which_and_has_exit_code_1(here, monkeypatch, capsys):
    monkeypatch.setattr(segment_model, "embedding_backward", lambda *arguments: None)
    monkeypatch.setitem(npxl.audit.scaling._LARGEST, "n_layer", 1)  # sooner done
    words = ["audit", "--preset", "tiny", "--seed", "7", "--only", "gradients/one-token"]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    verdict = lines.index("FAILED: gradients/one-token (embedding.weight).")
    assert lines[verdict + 1] == f"npxl {' '.join(words)}"
    assert lines[verdict + 2].startswith("seed 7; ")
    assert main([*words, "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert not values["passed"]
    assert values["checks"][0]["reproduce"] == f"npxl {' '.join(words)}"


def test_info_of_a_run(here, capsys):
    assert main(["info", "runs/small", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    model = npxl.load("runs/small/last.safetensors")
    assert values["parameters"] == len(model.params.flat)
    embeddings = model.params["embedding.weight"].size
    assert values["parameters_without_embeddings"] == len(model.params.flat) - embeddings
    assert values["model"] == to_dict(model.config)
    assert values["train"]["lr"] == 5e-3
    assert (values["step"], values["steps"]) == (30, 30)
    assert values["best"]["step"] in (15, 30)
    assert values["command"][:2] == ["npxl", "train"]
    # Each of 2 layers sees at most 8 in memory and 7 in its own segment before a token.
    assert (values["reach"], values["reach_is_exact"]) == (30, False)
    assert main(["info", "runs/small"]) == 0
    out = capsys.readouterr().out
    assert f"{values['parameters']:,}" in out
    assert "30 of 30" in out
    assert "at most 30 tokens" in out
    lines = out.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert {"model", "training"} < set(lines)
    (best,) = [line for line in lines if line.startswith("best score")]
    assert len(best) > 80  # whole, though a terminal would have 80 columns
    assert best.endswith(f"step {values['best']['step']})")


def test_an_adaptive_model_from_words_or_a_file_trains_resumes_and_reads(here, capsys):
    start = ["train", "text.txt", *SMALL, "--vocabulary", "characters", "--out"]
    words = ["--cutoffs=3", "--cutoffs=7", "--div-val=2", "--d-embed=8"]
    assert main([*start, "runs/adaptive", *words, "--tie-projs", "false", "true", "true"]) == 0
    model = npxl.load("runs/adaptive/best.safetensors")
    assert (model.config.cutoffs, model.config.tie_projs) == ((3, 7), (False, True, True))
    Path("adaptive.toml").write_text(
        "cutoffs = [3, 7]\ndiv_val = 2\ntie_projs = [false, true, true]\nd_embed = 8\n"
    )
    assert main([*start, "runs/again", "--config", "adaptive.toml"]) == 0
    again = npxl.load("runs/again/best.safetensors")
    assert again.config == model.config
    np.testing.assert_array_equal(again.params.flat, model.params.flat)

    assert main(["train", "--out", "runs/again", "--resume", "--steps", "40"]) == 0
    assert main(["eval", "runs/again", "--split", "valid"]) == 0
    assert main(["generate", "runs/again", "--tokens", "5"]) == 0
    capsys.readouterr()
    assert main(["info", "runs/again"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^cutoffs +3 7$", out, re.MULTILINE)
    assert re.search(r"^tie_projs +false true true$", out, re.MULTILINE)
    assert main(["audit", "runs/again", "--only", "gradients/one-token"]) == 0


def test_info_of_presets(capsys):
    assert main(["info"]) == 0
    assert re.findall(r"^([a-z]\S+)", capsys.readouterr().out, re.MULTILINE) == list(PRESETS)
    assert main(["info", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(PRESETS)
    assert main(["info", "--preset", "enwik8-large", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["parameters"] == pytest.approx(277e6, rel=0.01)  # Table 2 of the paper
    assert values["model"] == to_dict(PRESETS["enwik8-large"].model)
