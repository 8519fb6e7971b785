"""Checkpoints and run folders: complete, repeatable, and clear about what is wrong with them."""

import json
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import safetensors.numpy
from small_runs import create, finish, write_text

import npxl
from npxl import LSTMConfig, Memory, ModelConfig, NpxlError, TransformerXL
from npxl.models.architectures import model_class
from npxl.models.files import save_model
from npxl.training.checkpoints import (
    Checkpoint,
    Evaluation,
    Progress,
    Tally,
    load_checkpoint,
    load_progress,
    save_checkpoint,
)
from npxl.training.loop import Trainer
from npxl.training.run import Run
from npxl.training.schedules import Plateau

CONFIG = ModelConfig(vocab_size=7, n_layer=2, n_head=1, d_model=8, d_head=4, d_inner=8, mem_len=3)


RECURRENT = LSTMConfig(vocab_size=7, n_layer=2, d_model=8)


def example(dtype=np.float32, length=3, config=CONFIG) -> Checkpoint:
    draw = np.random.default_rng(5)
    model = model_class(config)(config, dtype=dtype)
    size = model.params.flat.size
    return Checkpoint(
        model=model,
        optimizer={
            "first_moment": draw.standard_normal(size).astype(dtype),
            "second_moment": draw.random(size).astype(dtype),
        },
        memory=Memory(draw.standard_normal((2, 5, length, 8)).astype(dtype)),
        progress=Progress(
            step=40,
            steps=100,
            evaluated=40,
            consumed=10**20,
            best=Evaluation(step=20, nll=1 / 3, bpc=0.1, bpb=0.2, ppl=1.4),
            plateau=Plateau(ratio=0.1, best=1 / 3, bad=2),
            tally=Tally(steps=3, nll=4.1, grad_norm=0.7, clipped=2),
        ),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("config", "length"), [(CONFIG, 0), (CONFIG, 3), (RECURRENT, 2)])
def test_what_is_saved_is_loaded(tmp_path, dtype, config, length):
    saved = example(dtype, length, config)
    save_checkpoint(tmp_path / "c.safetensors", saved)
    loaded = load_checkpoint(tmp_path / "c.safetensors")
    assert loaded.progress == saved.progress == load_progress(tmp_path / "c.safetensors")
    assert loaded.model.config == config
    assert loaded.optimizer.keys() == saved.optimizer.keys()
    pairs = [
        (loaded.model.params.flat, saved.model.params.flat),
        (loaded.memory.states, saved.memory.states),
        *((loaded.optimizer[name], saved.optimizer[name]) for name in saved.optimizer),
    ]
    for one, other in pairs:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


def test_progress_is_loaded_without_the_tensors(tmp_path):
    """From a sparse file of 64 GiB, which would not fit in memory."""
    size = 1 << 36
    progress = {"step": 3, "best": None, "plateau": {}, "tally": {}}
    header = {
        "__metadata__": {"npxl": json.dumps({"progress": progress})},
        "softmax.bias": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]},
    }
    encoded = json.dumps(header).encode()
    with open(tmp_path / "c.safetensors", "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(file.tell() + size)
    assert load_progress(tmp_path / "c.safetensors") == Progress(step=3)


def test_progress_that_has_not_begun_is_loaded(tmp_path):
    start = replace(example(), progress=Progress())
    save_checkpoint(tmp_path / "c.safetensors", start)
    assert load_checkpoint(tmp_path / "c.safetensors").progress == Progress()


def test_the_same_checkpoint_always_has_the_same_bytes(tmp_path):
    paths = [tmp_path / f"{i}.safetensors" for i in range(5)]
    for path in paths:
        save_checkpoint(path, example())
    assert len({path.read_bytes() for path in paths}) == 1
    save_checkpoint(paths[0], load_checkpoint(paths[0]))
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_checkpoint_is_a_model_file_too(tmp_path):
    save_checkpoint(tmp_path / "c.safetensors", example())
    np.testing.assert_array_equal(
        npxl.load(tmp_path / "c.safetensors").params.flat, example().model.params.flat
    )


def test_loaded_arrays_do_not_depend_on_the_file_any_more(tmp_path):
    path = tmp_path / "c.safetensors"
    save_checkpoint(path, example())
    loaded = load_checkpoint(path)
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.write(b"\0" * size)
    np.testing.assert_array_equal(loaded.model.params.flat, example().model.params.flat)
    np.testing.assert_array_equal(loaded.memory.states, example().memory.states)


@pytest.mark.parametrize("kept", [0, 5, 0.1, 0.5, -1])
def test_a_file_that_is_cut_short_is_named(tmp_path, kept):
    path = tmp_path / "cut.safetensors"
    save_checkpoint(path, example())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    for load in (load_checkpoint, load_progress, npxl.load):
        with pytest.raises(NpxlError, match=r"cut\.safetensors is damaged"):
            load(path)


def write_foreign(path):
    safetensors.numpy.save_file({"weight": np.zeros(3)}, path)


def write_text_instead(path):
    path.write_text("this is not a checkpoint, it only has its name\n" * 20)


def write_wrong_shape(path):
    wrong = replace(example(), model=TransformerXL(replace(CONFIG, d_inner=9)))
    save_model(wrong.model, path, None, {"config": npxl.config.to_dict(CONFIG)})


def write_without_state(path):
    example().model.save(path)


def write_wrong_memory(path):
    save_checkpoint(path, replace(example(), memory=Memory(np.zeros((2, 5, 3, 6), np.float32))))


def write_wrong_progress(path, **changes):
    good = example()
    progress = {**asdict(good.progress), **changes}
    save_model(good.model, path, {"training.memory": good.memory.states}, {"progress": progress})


def write_flat_memory(path):
    good = example()
    save_model(
        good.model,
        path,
        {"training.memory": np.zeros(4)},
        {"progress": {"best": None, "plateau": {}, "tally": {}}},
    )


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (write_foreign, "npxl did not write it"),
        (write_text_instead, "not a safetensors file"),
        (write_wrong_shape, "has shape"),
        (write_without_state, "without the state of a run"),
        (write_wrong_memory, "does not fit its model"),
        (write_flat_memory, "no usable memory"),
        (partial(write_wrong_progress, step="3"), "without the state of a run"),
        (partial(write_wrong_progress, step=1.5), "without the state of a run"),
        (partial(write_wrong_progress, evaluated=None), "without the state of a run"),
        (partial(write_wrong_progress, consumed=8.0), "without the state of a run"),
        (partial(write_wrong_progress, steps=[]), "without the state of a run"),
        (partial(write_wrong_progress, tally={"nll": "x"}), "without the state of a run"),
        (partial(write_wrong_progress, plateau={"ratio": None}), "without the state of a run"),
        (partial(write_wrong_progress, plateau={"bad": 0.5}), "without the state of a run"),
        (lambda path: None, "There is no file"),
    ],
)
def test_files_that_are_no_checkpoints_are_explained(tmp_path, write, problem):
    path = tmp_path / "strange.safetensors"
    write(path)
    with pytest.raises(NpxlError, match=problem) as error:
        load_checkpoint(path)
    assert "strange.safetensors" in str(error.value)


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "text.txt")


def test_a_new_run_describes_itself(tmp_path, text):
    create(tmp_path / "deep" / "run", text)
    run = Run.open(tmp_path / "deep" / "run")
    description = run.describe()
    assert description["parameters"] == run.model().params.flat.size == run.n_parameters
    assert description["model"]["vocab_size"] == 256
    assert description["train"]["workers"] == 2
    assert description["step"] == 0
    assert description["steps"] == 60
    assert description["best"] is None
    assert description["command"] == ["npxl", "train"]
    assert description["corpus"]["source"] == str(text)
    json.dumps(description)
    assert run.vocabulary.decode(run.vocabulary.encode("abba")) == "abba"


def test_workers_left_open_become_a_number(tmp_path, text):
    assert create(tmp_path / "run", text, workers=None).train_config.workers >= 1


def test_the_corpus_is_found_from_another_folder(tmp_path, text, monkeypatch):
    monkeypatch.chdir(tmp_path)
    create(tmp_path / "run", "text.txt")
    monkeypatch.chdir("/")
    assert Run.open(tmp_path / "run").corpus.name == "text.txt"


def test_a_run_is_never_overwritten(tmp_path, text):
    create(tmp_path / "run", text)
    with pytest.raises(NpxlError, match="never overwritten"):
        create(tmp_path / "run", text)
    (tmp_path / "file").write_text("precious")
    with pytest.raises(NpxlError, match="exists"):
        create(tmp_path / "file", text)
    assert (tmp_path / "file").read_text() == "precious"


def test_a_run_that_cannot_begin_leaves_nothing_behind(tmp_path, text, monkeypatch):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(NpxlError):
        create(tmp_path / "run", tmp_path / "missing.txt")
    monkeypatch.setattr("npxl.training.run.save_checkpoint", interrupt)
    with pytest.raises(KeyboardInterrupt):
        create(tmp_path / "run", text)
    assert sorted(tmp_path.iterdir()) == before


def interrupt(*arguments):
    raise KeyboardInterrupt


def test_a_folder_that_cannot_be_made_is_explained(tmp_path, text):
    with pytest.raises(NpxlError, match="No run can be made in"):
        create(text / "run", text)


def test_a_text_that_changed_is_noticed(tmp_path, text):
    create(tmp_path / "run", text)
    text.write_text(text.read_text().replace("cab", "cob", 1))
    run = Run.open(tmp_path / "run")
    with pytest.raises(NpxlError, match=r"not, or no longer, the one .*: npxl eval"):
        Trainer(run)


def damage_json(folder):
    (folder / "run.json").write_text("{")


def forget_the_model(folder):
    record = json.loads((folder / "run.json").read_text())
    del record["model"]
    (folder / "run.json").write_text(json.dumps(record))


def spoil_an_option(folder):
    record = json.loads((folder / "run.json").read_text())
    record["train"]["lr"] = -1
    (folder / "run.json").write_text(json.dumps(record))


def lose_the_text(folder):
    record = json.loads((folder / "run.json").read_text())
    record["corpus"]["source"] = None
    (folder / "run.json").write_text(json.dumps(record))


def another_format(folder):
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "format": 99}))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (damage_json, "cannot be read as JSON"),
        (forget_the_model, "lacks 'model'"),
        (spoil_an_option, "does not describe a run"),
        (lose_the_text, "its text, .* must be strings"),
        (another_format, "format 99"),
        (lambda folder: (folder / "run.json").unlink(), "There is no run in"),
    ],
)
def test_a_folder_that_is_no_run_is_explained(tmp_path, text, damage, problem):
    create(tmp_path / "run", text)
    damage(tmp_path / "run")
    with pytest.raises(NpxlError, match=problem):
        Run.open(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"d_inner": 20}},
        {"batch_size": 4},
        {"dtype": "float64"},
        {"optimizer": "sgd"},
        {"optimizer": "sgd", "momentum": 0.5},
        {"optimizer": "adagrad"},
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, text, change):
    run = create(tmp_path / "run", text)
    other = create(tmp_path / "other", text, **change)
    run.last.write_bytes(other.last.read_bytes())
    with pytest.raises(NpxlError, match="does not belong to this run") as error:
        Trainer(run)
    assert str(run.last) in str(error.value)


@pytest.mark.parametrize("varlen", [False, True])
def test_a_checkpoint_that_has_read_more_or_less_than_its_segments_is_refused(
    tmp_path, text, varlen
):
    create(tmp_path / "run", text, steps=10, varlen=varlen)
    run = finish(tmp_path / "run")
    checkpoint = run.checkpoint()
    for consumed in (0, 10 * 4, 10 * 24):
        progress = replace(checkpoint.progress, consumed=consumed)
        save_checkpoint(run.last, replace(checkpoint, progress=progress))
        with pytest.raises(NpxlError, match=rf"has read {consumed} tokens in 10 segments, which"):
            Trainer(run)


def test_a_run_with_the_checkpoint_of_another_is_not_described(tmp_path, text):
    run = create(tmp_path / "run", text)
    run.last.write_bytes(create(tmp_path / "other", text, model={"d_inner": 20}).last.read_bytes())
    with pytest.raises(NpxlError, match=r"last\.safetensors does not belong to this run"):
        run.describe()


def test_a_checkpoint_without_a_moment_is_refused(tmp_path, text):
    run = create(tmp_path / "run", text)
    checkpoint = run.checkpoint()
    del checkpoint.optimizer["second_moment"]
    save_checkpoint(run.last, checkpoint)
    with pytest.raises(NpxlError, match=r"first_moment and second_moment, but .* has first_mom"):
        Trainer(run)


def test_best_and_last_are_models(tmp_path, text):
    create(tmp_path / "run", text, steps=10, eval_interval=5)
    run = finish(tmp_path / "run")
    best = npxl.load(run.best)
    np.testing.assert_array_equal(run.model().params.flat, best.params.flat)
    np.testing.assert_array_equal(run.model("last").params.flat, npxl.load(run.last).params.flat)
