"""Saved models: the same bytes come back, and a file that is wrong says how."""

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from numerical import assert_eq, seeds
from support import each_kind, model_for, tokens

import npxl
from npxl import ModelConfig, NpxlError, TransformerXL
from npxl.tensor_files import write_tensors

SMALL = ModelConfig(vocab_size=5, n_layer=1, n_head=2, d_model=6, d_head=3, d_inner=5, mem_len=4)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def contents(path):
    """Tensors and metadata of a saved model, to be written again with a fault."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@each_kind()
@given(data=st.data(), seed=seeds, dtype=st.sampled_from([np.float32, np.float64]))
def test_a_model_comes_back_bit_for_bit(tmp_path_factory, configs, data, seed, dtype):
    config = data.draw(configs)
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    model = model_for(config, seed, dtype)
    model.save(path)
    loaded = npxl.load(path)
    assert loaded.config == config
    assert loaded.dtype == dtype
    assert loaded.params.shapes == model.params.shapes
    assert loaded.params.flat.tobytes() == model.params.flat.tobytes()
    text = tokens((2, 4), seed, config.vocab_size)
    log_probs, _ = model.log_probs(text, model.init_memory(2))
    assert_eq(loaded.log_probs(text, loaded.init_memory(2))[0], log_probs)


def test_a_path_may_be_a_string(path):
    TransformerXL(SMALL).save(str(path))
    assert npxl.load(str(path)).config == SMALL


def test_saving_twice_writes_the_same_bytes(path):
    TransformerXL(SMALL).save(path)
    first = path.read_bytes()
    TransformerXL(SMALL).save(path)
    assert path.read_bytes() == first


@pytest.mark.fault("safetensors #762", "SimpleTuner #2714", "unsloth-zoo #190", "unsloth-zoo #1078")
def test_a_model_may_be_saved_over_the_file_it_came_from(path):
    TransformerXL(SMALL, seed=1).save(path)
    model = npxl.load(path)
    model.params.flat[0] = 7
    model.save(path)
    assert_eq(npxl.load(path).params.flat, model.params.flat)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.fault("safetensors #762", "SimpleTuner #2714", "unsloth-zoo #190", "unsloth-zoo #1078")
def test_a_loaded_model_does_not_change_with_its_file(path):
    model = TransformerXL(SMALL, seed=1)
    model.save(path)
    loaded = npxl.load(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert_eq(loaded.params.flat, model.params.flat)


@pytest.mark.fault("safetensors #458")
def test_saving_and_loading_take_no_copies(path):
    """safetensors #458: saving took twice the memory of the model."""
    model = TransformerXL(replace(SMALL, vocab_size=100_000, d_inner=100_000))
    size = model.params.flat.nbytes
    assert peak_of(lambda: model.save(path)) < 0.02 * size
    largest = max(view.nbytes for view in model.params.values())
    assert peak_of(lambda: npxl.load(path)) < size + 2.2 * largest


def peak_of(action):
    """The most bytes that Python and NumPy hold besides those from before."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.int8, np.uint16, bool])
def test_the_library_reads_arrays_of_all_types_and_shapes(path, dtype):
    draw = np.random.default_rng(0).standard_normal
    tensors = {
        "matrix": (8 * draw((3, 5))).astype(dtype), "one": np.array(3, dtype), "none": np.zeros(0),
        "flat": np.zeros((2, 0, 3), dtype), "columns": (8 * draw((4, 6)))[:, ::2].astype(dtype).T,
        "double": draw(3),
    }  # fmt: skip
    write_tensors(path, tensors, {"a": "é"})
    read, metadata = contents(path)
    assert json.loads(metadata["npxl"]) == {"a": "é"}
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert_eq(read[name], tensor)


def test_a_missing_file_is_an_error(path):
    with pytest.raises(NpxlError, match=r"There is no file .*model\.safetensors"):
        npxl.load(path)


def test_a_folder_is_an_error_that_names_the_file_of_a_run(tmp_path):
    with pytest.raises(NpxlError, match=rf"{tmp_path} is a folder.*best\.safetensors"):
        npxl.load(tmp_path)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_an_error(path, kept):
    TransformerXL(SMALL).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(NpxlError, match="damaged, cut short or not a safetensors file"):
        npxl.load(path)


def test_a_foreign_file_is_an_error(path):
    path.write_text("The quick brown fox jumps over the lazy dog.")
    with pytest.raises(NpxlError, match="not a safetensors file"):
        npxl.load(path)
    safetensors.numpy.save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(NpxlError, match="npxl did not write it"):
        npxl.load(path)


@pytest.mark.parametrize(
    ("fault", "facts"),
    [
        (lambda t, c: t.update(b=t.pop("softmax.bias")), ["lack softmax.bias", "unknown b"]),
        (lambda t, c: t.update({"attention.u": np.zeros((3, 3), np.float32)}),
         ["attention.u", "(3, 3)", "(2, 3)"]),
        (lambda t, c: t.update({"attention.u": np.zeros((2, 3))}), ["float32", "float64"]),
        (lambda t, c: t.update({name: tensor.astype(np.float16) for name, tensor in t.items()}),
         ["float16", "float32 or float64"]),
        (lambda t, c: c.update(n_layer=2), ["lack layers.1."]),
        (lambda t, c: c.update(n_layer=-1), ["n_layer is -1"]),
        (lambda t, c: c.update(n_layers=1), ["no option 'n_layers'"]),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_an_error_with_the_facts(path, fault, facts):
    TransformerXL(SMALL).save(path)
    tensors, metadata = contents(path)
    metadata = json.loads(metadata["npxl"])
    fault(tensors, metadata["config"])
    safetensors.numpy.save_file(tensors, path, metadata={"npxl": json.dumps(metadata)})
    with pytest.raises(NpxlError) as error:
        npxl.load(path)
    for fact in [str(path), *facts]:
        assert fact in str(error.value)


def test_numbers_that_numpy_lacks_are_an_error(path):
    header = {"w": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    encoded = json.dumps(header).encode()
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(4))
    with pytest.raises(NpxlError, match="w is BF16"):
        npxl.load(path)


def test_a_model_of_another_kind_is_an_error(path):
    TransformerXL(SMALL).save(path)
    tensors, metadata = contents(path)
    metadata = json.loads(metadata["npxl"]) | {"model": "gru"}
    safetensors.numpy.save_file(tensors, path, metadata={"npxl": json.dumps(metadata)})
    with pytest.raises(NpxlError, match="'gru'"):
        npxl.load(path)


@pytest.mark.parametrize("place", ["nowhere/model.safetensors", "file/model.safetensors", "folder"])
def test_a_place_where_no_file_can_be_is_named(tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(NpxlError) as error:
        TransformerXL(SMALL).save(tmp_path / place)
    assert str(error.value).startswith(f"{tmp_path / place} cannot be written (")
    assert "tmp)" not in str(error.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.fault("burn #5479")
def test_a_save_that_fails_leaves_the_old_file(path, monkeypatch):
    TransformerXL(SMALL, seed=1).save(path)
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        TransformerXL(replace(SMALL, n_layer=2)).save(path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]
