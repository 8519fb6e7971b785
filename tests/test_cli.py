"""The command line: every command on a small run, and one sentence for every mistake."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from small_runs import write_text

import npxl
import npxl.audit
from npxl import ModelConfig, NpxlError, TrainConfig
from npxl.audit import sections
from npxl.audit.frame import Check, Result, Section
from npxl.audit.outcome import CheckOutcome
from npxl.cli import main
from npxl.cli.options import configured
from npxl.config import to_dict
from npxl.inference import evaluate, generate
from npxl.inference.evaluation import Reading
from npxl.models import segment_model
from npxl.presets import PRESETS
from npxl.studies import STUDIES

SMALL = [
    "--n-layer=2", "--n-head=2", "--d-model=16", "--d-head=8", "--d-inner=16", "--mem-len=8",
    "--batch-size=3", "--tgt-len=8", "--steps=30", "--lr=5e-3", "--warmup-steps=5",
    "--eval-interval=15", "--log-interval=10", "--workers=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with text.txt and runs/small, trained on it by the command line."""
    folder = tmp_path_factory.mktemp("trained")
    text = write_text(folder / "text.txt")
    assert main(["train", str(text), "--out", str(folder / "runs" / "small"), *SMALL]) == 0
    return folder


@pytest.fixture
def here(trained, tmp_path, monkeypatch):
    """A copy of that folder, as the working folder."""
    shutil.copytree(trained, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def snapshot(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def record(run: str) -> dict:
    return json.loads(Path(run, "run.json").read_text())


def command(*words: str, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(npxl.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, "-m", "npxl", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env=environment, **options,
    )  # fmt: skip


# Help


def test_help_needs_neither_numpy_nor_numba():
    code = "import sys, npxl.cli; npxl.cli.main(['train', '--help']); print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(npxl.__file__).parents[1])}
    modules = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert not {"numpy", "numba", "npxl.models"} & set(modules.split())


def help_of(capsys, monkeypatch, *words):
    monkeypatch.setenv("COLUMNS", "400")
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", [ModelConfig, TrainConfig])
def test_help_shows_every_field_with_its_default_and_its_documentation(kind, capsys, monkeypatch):
    lines = help_of(capsys, monkeypatch, "train").splitlines()
    paragraphs = dict(re.findall(r"^    (\w+)\n((?: {8}.*\n?)+)", kind.__doc__, re.MULTILINE))
    for field in dataclasses.fields(kind):
        option = "--" + field.name.replace("_", "-")
        line = next(line for line in lines if line.startswith(f"│ {option} "))
        assert " ".join(paragraphs[field.name].replace("`", "").split()) in line
        start = PRESETS["default"].model if kind is ModelConfig else PRESETS["default"].train
        default = getattr(start, field.name)
        default = "none" if default in (None, ()) else str(default)
        assert f"[default: {default}]".lower() in line.lower()


def test_help_lists_the_commands_and_eval_the_options_for_reading(capsys, monkeypatch):
    out = help_of(capsys, monkeypatch)
    commands = ["train", "eval", "generate", "audit", "bench", "study", "convert", "info"]
    assert re.findall(r"│ (\w+) ", out) == commands
    out = help_of(capsys, monkeypatch, "eval")
    for option in ("--split", "--tgt-len", "--mem-len", "--attn-window", "--clamp-len", "--json"):
        assert option in out
    assert "--n-layer" not in out


def test_help_lists_what_there_is_to_study_and_to_audit(capsys, monkeypatch):
    assert f"Studies: {', '.join(STUDIES)}." in help_of(capsys, monkeypatch, "study")
    out = help_of(capsys, monkeypatch, "audit")
    for section in sections.SECTIONS:
        assert f"{section.name}: {', '.join(check.name for check in section.checks)}" in out


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"npxl {npxl.__version__}\n"


def test_help_names_the_arguments_and_puts_the_text_before_model_and_training(capsys, monkeypatch):
    for command, usage in (
        ("train", "[CORPUS] [OPTIONS]"), ("eval", "RUN [CORPUS] [OPTIONS]"),
        ("generate", "RUN [OPTIONS]"), ("convert", "SOURCE [OPTIONS]"),
        ("info", "[RUN] [OPTIONS]"), ("bench", "[OPTIONS]"),
        ("study", "[NAMES...] [OPTIONS]"),
    ):  # fmt: skip
        assert f"Usage: npxl {command} {usage}\n" in help_of(capsys, monkeypatch, command)
    panels = re.split(r"╭─ (.*?) ─+╮", help_of(capsys, monkeypatch, "train"))[1:]
    names = [name for name in panels[::2] if name.endswith("options")]
    assert names == ["Text options", "Model options", "Training options"]
    text = panels[2 * panels[::2].index("Text options") + 1]
    names = ["--dataset", "--vocabulary", "--min-count", "--tokenizer"]
    assert re.findall(r"│ (--[\w-]+) ", text) == names
    assert "Preset to show: default" in help_of(capsys, monkeypatch, "info")
    assert "Preset to check: default" in help_of(capsys, monkeypatch, "audit")


# Configuration


def test_the_two_configurations_share_no_name():
    names = [
        field.name for kind in (ModelConfig, TrainConfig) for field in dataclasses.fields(kind)
    ]
    assert len(names) == len(set(names))


def test_options_come_before_the_file_which_comes_before_the_preset(tmp_path):
    file = tmp_path / "options.toml"
    file.write_text(
        "n_layer = 3\nlr = 1\nattn_window = 7\n[model]\nmem_len = 9\n[train]\nseed = 5\n"
    )
    model, train, chosen = configured("tiny", file, {"mem_len": 4, "attn_window": None})
    tiny = PRESETS["tiny"]
    assert model == dataclasses.replace(tiny.model, n_layer=3, mem_len=4, attn_window=None)
    assert train == dataclasses.replace(tiny.train, lr=1, seed=5)
    assert chosen == {"n_layer", "lr", "attn_window", "mem_len", "seed"}


def test_every_field_is_a_key_of_a_file_in_its_table_or_outside(tmp_path):
    file = tmp_path / "options.toml"
    expected = {ModelConfig: {"n_layer": 3}, TrainConfig: {"minutes": 2.5}}
    for names in (("", ""), ("[model]\n", "[train]\n")):
        lines = ""
        for kind, table in zip(expected, names, strict=True):
            values = {f.name: f.default for f in dataclasses.fields(kind)} | expected[kind]
            values = {n: "none" if value is None else value for n, value in values.items()}
            values.pop("steps", None)
            lines += table + "".join(f"{n} = {json.dumps(v)}\n" for n, v in values.items())
        file.write_text(lines)
        model, train, _ = configured(None, file, {})
        assert model == ModelConfig(n_layer=3)
        assert train == TrainConfig(minutes=2.5)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    file = tmp_path / "options.toml"
    file.write_bytes(b"\xef\xbb\xbfsteps = 7\n")
    assert configured(None, file, {})[1].steps == 7


def test_steps_given_replace_the_minutes_of_a_file(tmp_path):
    file = tmp_path / "options.toml"
    file.write_text("minutes = 3.0\n")
    assert configured(None, file, {})[1].minutes == 3
    train = configured(None, file, {"steps": 7})[1]
    assert (train.steps, train.minutes) == (7, None)
    assert configured(None, None, {"minutes": 2.0})[1].minutes == 2


def test_the_record_of_a_run_shows_how_options_were_given(here):
    Path("options.toml").write_text("d_inner = 8\nmem_len = 4\nattn_window = 3\n")
    words = ["train", "text.txt", "--config", "options.toml", "--preset", "tiny", "--mem-len", "2"]
    words += ["--attn-window", "none", "--no-pre-lnorm", "--no-tie-weight", "--steps", "1"]
    assert main(words) == 0
    assert record("runs/text-1")["command"] == ["npxl", *words]
    model = record("runs/text-1")["model"]
    d_model = PRESETS["tiny"].model.d_model
    assert (model["d_model"], model["d_inner"], model["mem_len"]) == (d_model, 8, 2)
    assert (model["attn_window"], model["pre_lnorm"], model["tie_weight"]) == (None, False, False)


# train


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


# eval


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


# generate


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


# audit and info


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


# Mistakes


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
