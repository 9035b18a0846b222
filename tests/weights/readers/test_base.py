"""The mapping itself, and the types that numpy does not know."""

import gc
import pathlib

import ml_dtypes
import numpy as np
import pytest

from keras_vit.weights.readers import Checkpoint, CheckpointError, base, read


@pytest.fixture
def path(tmp_path):
    np.savez(tmp_path / "x", **{"a": np.zeros((2, 3), np.float32), "b/c": np.int64(1)})
    return tmp_path / "x.npz"


def test_mapping(path):
    with read(str(path)) as checkpoint:
        assert isinstance(checkpoint, Checkpoint)
        assert checkpoint.path == path and isinstance(checkpoint.path, pathlib.Path)
        assert list(checkpoint) == ["a", "b/c"] and len(checkpoint) == 2
        assert "a" in checkpoint and "c" not in checkpoint
        assert checkpoint.get("c") is None
        assert repr(checkpoint) == f"npz checkpoint with 2 arrays: {path}"
        for lookup in (checkpoint.__getitem__, checkpoint.shape, checkpoint.dtype):
            with pytest.raises(KeyError, match="'c'"):
                lookup("c")


def test_nothing_is_read_before_it_is_asked_for(path):
    entry = base.Entry((2, 3), "float32", lambda: pytest.fail("was read"))
    checkpoint = Checkpoint(path, "npz", {"a": entry}, {}, lambda: None)
    assert "a" in checkpoint and "b" not in checkpoint
    assert checkpoint.shape("a") == (2, 3) and checkpoint.dtype("a") == "float32"


def test_nothing_is_kept(path):
    with read(path) as checkpoint:
        assert checkpoint["a"] is not checkpoint["a"]


def test_closed_checkpoint_keeps_its_names(path):
    checkpoint = read(path)
    checkpoint.close()
    checkpoint.close()
    assert checkpoint.shape("a") == (2, 3) and list(checkpoint) == ["a", "b/c"]
    with pytest.raises(CheckpointError, match="'a': the checkpoint is closed"):
        checkpoint["a"]


def test_forgotten_checkpoint_closes_its_file(path):
    checkpoint = read(path)
    load = checkpoint._entries["a"].load
    del checkpoint
    gc.collect()  # an open file would warn, and warnings are errors
    with pytest.raises(CheckpointError, match="closed"):
        load()


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_value_of_the_short_types(name):
    expected_type = np.dtype(getattr(ml_dtypes, name))
    bits = np.arange(256**expected_type.itemsize).astype(f"u{expected_type.itemsize}")
    values = base.decode(bits.view(np.uint8), name)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, bits.view(expected_type).astype(np.float32))


def test_error_is_a_value_error():
    assert issubclass(CheckpointError, ValueError)
