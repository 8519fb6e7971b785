"""npxl study: what it prints, what it refuses, and the page."""

import json
from dataclasses import replace
from html.parser import HTMLParser
from signal import SIGINT, raise_signal

import pytest
from tiny_studies import untrained

from npxl import NpxlError, load_corpus
from npxl.cli import main
from npxl.data import BUNDLED
from npxl.studies import STUDIES, Lab, conduct, lab, runner, speed
from npxl.studies.page import shown


def test_the_command_prints_tables_or_json(tiny, folder, capsys):
    words = ["study", "attention", "--quick", "--out", str(folder)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "Share of attention by distance" in lines  # which is wider than the table
    assert main([*words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["attention"]["result"]["mem_len"] == 8


def test_a_folder_that_is_a_file_is_refused_by_its_name(tiny, tmp_path, capsys):
    path = tmp_path / "notes.txt"
    path.write_text("of mine")
    assert main(["study", "speed", "--quick", "--out", str(path)]) == 2
    assert f"Nothing can be kept in {path} (File exists)" in capsys.readouterr().err
    assert path.read_text() == "of mine"


def test_a_text_is_refused_before_any_study_begins(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("npxl.studies.runner.Lab.trained", None)  # nothing is trained
    monkeypatch.setattr(speed, "measure", None)  # or measured
    text = tmp_path / "short.txt"  # long enough for all but one
    text.write_bytes(BUNDLED["kjv"].read_bytes()[:12_000])
    setting = replace(tiny["recl"].quick, n_positions=1000)
    monkeypatch.setitem(STUDIES, "recl", replace(tiny["recl"], quick=setting))
    words = ["study", "--all", "--quick", "--corpus", str(text), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert "at least 1,024 are needed by the study recl" in printed.err
    assert printed.out == ""


def test_the_command_says_what_is_trained_and_where_it_is_kept(tiny, text, tmp_path, capsys):
    words = ["study", "fragmentation", "--quick", "--corpus", text, "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for n, memory in ((1, "memory 8"), (2, "no memory")):
        assert f"model {n} of 2, {memory}, encoding dai, full loss, seed 0" in printed
    assert f"Kept in {tmp_path}/fragmentation-quick.json, with 1 picture." in printed
    assert (tmp_path / "fragmentation-quick.json").exists()


def test_ctrl_c_in_a_training_names_no_other_command(tiny, tmp_path, capsys, monkeypatch):
    def stop(reporter, run, progress):
        raise_signal(SIGINT)

    monkeypatch.setattr(lab.ConsoleReporter, "begin", stop)
    assert main(["study", "fragmentation", "--quick", "--out", str(tmp_path)]) == 130
    printed = capsys.readouterr().out
    assert "Stopped after step 0 of 40; everything is saved.\nStopped; what is fin" in printed
    assert "--resume" not in printed


def test_ctrl_c_while_measuring_says_how_to_go_on(tiny, tmp_path, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(speed, "measure", interrupted)
    assert main(["study", "speed", "--quick", "--out", str(tmp_path)]) == 130
    assert "what is finished is kept, and the same command goes on" in capsys.readouterr().out


class Links(HTMLParser):
    """What a page refers to, and what can be referred to in it."""

    def __init__(self, page):
        super().__init__()
        self.targets, self.names = set(), set()
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src", "xlink:href"):
                self.targets.add(value)
            if name == "id":
                self.names.add(value)


def test_all_studies_on_a_page(tiny, folder, capsys, monkeypatch):
    chosen = {name: tiny[name] for name in ("fragmentation", "attention")}
    monkeypatch.setattr("npxl.studies.STUDIES", chosen)
    assert main(["study", "--all", "--quick", "--out", str(folder)]) == 0
    page = (folder / "index-quick.html").read_text()  # the one of the full settings is kept
    printed = capsys.readouterr().out
    assert f"Page: {folder / 'index-quick.html'}" in printed
    links = Links(page)
    assert {"#fragmentation", "#attention"} <= links.targets
    for target in links.targets:  # within the page, or in it
        assert target.startswith("data:") or target.removeprefix("#") in links.names
    for name, study in chosen.items():
        outcome = conduct(study, folder, study.quick)
        section = page.split(f'<h2 id="{name}">')[1].split("</section>")[0]
        for table in outcome.tables:
            for row in table.rows:
                assert all(f">{shown(cell)}</td>" in section for cell in row), name
        assert section.count("<svg role") == len(outcome.pictures) > 0
        for model in outcome.models:
            assert model in section
    assert f"npxl study --all --quick --out {folder}" in page


def test_a_text_of_ones_own_has_results_of_its_own(tiny, folder, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(runner, "write_json", lambda path, values: called.append(path.name))
    other = tmp_path / "exodus.txt"
    other.write_bytes(BUNDLED["kjv"].read_bytes()[200_000:230_000])
    study = tiny["attention"]

    def conduct_on(corpus):
        return conduct(study, tmp_path, replace(study.quick, corpus=str(corpus)))

    outcome = conduct_on(other)
    assert outcome.quick
    assert outcome.as_json()["fingerprint"] == load_corpus(other).fingerprint
    assert called == [f"attention-quick-exodus-{outcome.fingerprint[:6]}.json"]
    (tmp_path / "leviticus").mkdir()
    for name in ("train.txt", "valid.txt"):
        (tmp_path / "leviticus" / name).write_bytes(BUNDLED["kjv"].read_bytes()[320_000:322_000])
    monkeypatch.chdir(tmp_path / "leviticus")
    monkeypatch.setattr(Lab, "trained", untrained)
    outcome = conduct_on(".")
    assert called[1:] == [f"attention-quick-leviticus-{outcome.fingerprint[:6]}.json"]
    with pytest.raises(NpxlError, match="no file or folder"):
        conduct_on(tmp_path / "nowhere")


def test_a_setting_of_ones_own_has_results_of_its_own(tiny, folder, found):
    study = tiny["attention"]
    labels = [found("attention").label]
    for n_segments in (1, 2):
        outcome = conduct(study, folder, replace(study.quick, n_segments=n_segments))
        labels.append(outcome.label)
        assert not outcome.quick
        kept = json.loads((folder / f"{outcome.label}.json").read_text())
        assert kept["setting"]["n_segments"] == n_segments
    assert labels[0] == "attention-quick"
    assert len(set(labels)) == 3


def test_a_text_is_not_wanted_where_none_is_read(tiny, tmp_path, capsys):
    assert main(["study", "speed", "--corpus", "kjv", "--out", str(tmp_path)]) == 2
    assert "The study speed reads no text: leave out --corpus." in capsys.readouterr().err


def test_a_study_that_fails_does_not_keep_others_from_running(
    tiny, folder, tmp_path, capsys, monkeypatch
):
    def fails(*_):
        raise NpxlError("The loss is not finite.")

    def is_too_large(*_):
        raise MemoryError

    chosen = {name: tiny[name] for name in ("speed", "attention")}
    chosen["speed"] = replace(chosen["speed"], run=fails)
    monkeypatch.setattr("npxl.studies.STUDIES", chosen)
    words = ["study", "--all", "--quick", "--json", "--out", str(folder)]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert "The study speed failed. The loss is not finite." in printed.err
    assert "Failed: speed; the others are finished." in printed.err
    assert list(json.loads(printed.out)) == ["attention"]
    page = (folder / "index-quick.html").read_text()
    assert 'id="attention"' in page
    assert 'id="speed"' not in page
    assert "the study speed" in page
    assert "The loss is not finite." in page
    monkeypatch.setitem(chosen, "attention", replace(chosen["attention"], run=is_too_large))
    words[-1] = str(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {}
    assert "The study attention failed. There is not enough memory." in printed.err
    assert "the others" not in printed.err
    page = (tmp_path / "index-quick.html").read_text()
    assert "the study attention. " in page
    assert "There is not enough memory." in page


def test_a_file_that_cannot_be_written_is_named_and_the_other_studies_run(
    tiny, tmp_path, capsys, monkeypatch
):
    (tmp_path / "fragmentation-quick.json").mkdir()
    words = ["study", "fragmentation", "attention", "--quick", "--out", str(tmp_path)]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert "The study fragmentation failed." in printed.err
    assert "fragmentation-quick.json: Is a directory: move it away" in printed.err
    assert (tmp_path / "attention-quick.json").exists()
    (tmp_path / "index-quick.html").mkdir()
    monkeypatch.setattr("npxl.studies.STUDIES", {"attention": tiny["attention"]})
    assert main(["study", "--all", "--quick", "--out", str(tmp_path)]) == 2
    assert "where the page goes, is a folder" in capsys.readouterr().err
