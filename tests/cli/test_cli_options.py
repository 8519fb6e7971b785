"""Help, and how options, files and presets make a configuration."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import record

import npxl
import npxl.audit
from npxl import ModelConfig, TrainConfig
from npxl.audit import sections
from npxl.cli import main
from npxl.cli.options import configured
from npxl.presets import PRESETS
from npxl.studies import STUDIES


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
