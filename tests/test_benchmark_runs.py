"""Every benchmark is trained on, resumed, scored and continued from the command line."""

import json
import math
import re
from pathlib import Path

import pytest
from small_runs import contents, create, finish
from texts import lines, make, word_level, written

from npxl import NpxlError, load_corpus
from npxl.cli import main
from npxl.datasets import DATASETS, UNITS
from npxl.inference import score
from npxl.training.loop import Trainer
from npxl.training.run import Run

SMALL = [
    "--n-layer=1", "--n-head=2", "--d-model=16", "--d-head=8", "--d-inner=16", "--mem-len=8",
    "--batch-size=3", "--tgt-len=8", "--steps=12", "--lr=5e-3", "--warmup-steps=2",
    "--eval-interval=6", "--log-interval=6", "--workers=1",
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.fault("NV #1011")
@pytest.mark.parametrize("name", [name for name in DATASETS if name != "text"])
def test_a_benchmark_is_trained_on_scored_and_continued(here, capsys, name):
    """HF #466, #2000, #4459: words that the vocabulary lacks are counted and said."""
    path = make(name, here / "text")
    words = ["train", str(path), "--dataset", name, "--out", "run", *SMALL]
    if name == "lm1b":
        words.append("--min-count=1")
    assert main(words) == 0
    out = capsys.readouterr().out
    known = DATASETS[name]
    corpus = Run.open("run").corpus
    assert f"{len(corpus.train):,} {known.vocabulary}, vocabulary {corpus.vocab.size:,}" in out
    assert "cannot be compared with published ones" in out
    if known.unit == "ppl":
        assert re.search(r"step +6  loss [\d.]+  perplexity [\d.]+  lr", out)
    if name in ("wt103", "lm1b"):
        assert re.search(r"1 of \d+ tokens for validation are not in the vocabulary", out)

    record = json.loads(Path("run/run.json").read_text())
    assert record["train"]["dataset"] == name
    assert record["train"]["vocabulary"] == known.vocabulary
    assert record["model"]["vocab_size"] == corpus.vocab.size
    assert record["corpus"]["fingerprint"] == corpus.fingerprint

    assert main(["eval", "run", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["unit"] == known.unit
    model = Run.open("run").model()
    nll = score(model, corpus.test.tokens, tgt_len=8)
    assert values["tokens"] == len(nll) == len(corpus.test) - 1
    in_paper = math.exp(nll.mean()) if known.unit == "ppl" else nll.mean() / math.log(2)
    assert values[known.unit] == pytest.approx(in_paper, rel=1e-5)
    assert main(["eval", "run", str(path)]) == 0
    assert re.search(rf"scored in +{UNITS[known.unit]} *\n", capsys.readouterr().out)

    for prompt in ([], ["--prompt", "the Cat"], ["--prompt", "\n\n"]):
        assert main(["generate", "run", "--tokens", "9", *prompt]) == 0
        assert capsys.readouterr().out
    Path("other.txt").write_text("the cat sat\non the mat\n" * 9)
    assert main(["eval", "run", "other.txt", "--dataset", "text", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == "bpc"


@pytest.mark.parametrize(("name", "words"), [("enwik8", {}), ("lm1b", {"min_count": 1})])
def test_a_run_on_a_benchmark_resumes_to_the_same_bytes(here, name, words):
    """Sentences in the order in which they would have been read, across a round's end."""
    path = make(name, here / "text")
    options = dict(dataset=name, steps=60, eval_interval=20, **words)
    create(here / "whole", path, **options)
    whole = contents(finish(here / "whole"))
    run = create(here / "stopped", path, **options)
    trainer = Trainer(run)
    for _ in range(7):
        trainer.update()
    trainer._save_if_changed()
    assert Run.open(here / "stopped").checkpoint().progress.step == 7
    assert contents(finish(here / "stopped")) == whole


def test_a_run_reads_with_its_own_vocabulary(here):
    """The file that gave it may be gone, and a text that changed is noticed."""
    path = make("lm1b", here / "text")
    vocabulary = written(path / "1b_word_vocab.txt", "<S>\n<UNK>\nthe\ncat\nsat\n")
    create(here / "run", path, dataset="lm1b", steps=1)
    vocabulary.unlink()
    run = Run.open(here / "run")
    assert run.corpus.vocab.words == ("<S>", "<UNK>", "the", "cat", "sat")
    written(path / DATASETS["lm1b"].layout.patterns["train"][0].replace("*", "2"), "the cat\n")
    with pytest.raises(NpxlError, match="not, or no longer, the one"):
        _ = Run.open(here / "run").corpus


def test_without_a_text_a_benchmark_says_what_is_wanted(here, capsys):
    assert main(["train", "--preset", "enwik8-base"]) == 2
    err = capsys.readouterr().err
    assert "http://mattmahoney.net/dc/enwik8.zip" in err
    assert list(here.iterdir()) == []


def test_subwords_of_a_tokenizer(here, capsys):
    pytest.importorskip("tokenizers")
    Path("tokenizer.json").write_text(json.dumps(word_level()))
    path = make("ptb", here / "text")
    words = ["train", str(path), "--dataset", "ptb", "--tokenizer", "tokenizer.json", *SMALL]
    assert main([*words, "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "subwords, vocabulary 9)" in out
    assert re.search(r"\d+ of [\d,]+ tokens for training and \d+ of \d+ tokens for valid", out)
    Path("tokenizer.json").unlink()  # the run has its own
    assert main(["eval", "run", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["unit"] == "bpc"
    assert "not in the run's vocabulary" in err
    for prompt, lacks in (("the dog", "'dog'"), ("", None)):
        assert main(["generate", "run", "--tokens", "5", "--prompt", prompt]) == 0
        out, err = capsys.readouterr()
        assert ("lacks " + str(lacks) in err) == (lacks is not None)
    assert main(["train", "--out", "run", "--resume", "--steps", "14"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--vocabulary subwords", "give the path of a tokenizer.json"),
        ("--vocabulary words --tokenizer tokenizer.json", "leave one of them out"),
        ("--tokenizer missing.json", "missing.json cannot be read"),
        ("--tokenizer=", "tokenizer is '', but"),
        ("--dataset ptb", "is not a folder with the files of its training split"),
        ("--dataset wikitext", "wikitext"),
    ],
)
def test_mistakes_about_texts(here, capsys, words, message):
    Path("text.txt").write_text(lines(99))
    assert main(["train", "text.txt", "--out", "run", *SMALL, *words.split()]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"npxl: [^\n]+\n", err)
    assert message in err
    assert not Path("run").exists()


def test_a_batch_with_more_streams_than_sentences_is_refused(here):
    corpus = load_corpus(make("lm1b", here / "text"), dataset="lm1b")
    with pytest.raises(NpxlError, match="only 300 sentences"):
        corpus.train.streams(batch_size=301, tgt_len=8)
