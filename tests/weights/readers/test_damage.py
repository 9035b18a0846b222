"""Damaged files of every format: refused, or read; never anything else."""

import io
import os
import pathlib
import zipfile

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_vit.weights.readers import CheckpointError, read

FILES = pathlib.Path(__file__).parents[2] / "goldens" / "files"


def npz_deflated():
    stream = io.BytesIO()
    np.savez_compressed(stream, **{"a/b": np.arange(99.0), "c": np.ones((3, 4), np.float32)})
    return stream.getvalue()


def hdf5():
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["layers/dense/vars/0"] = np.arange(12, dtype=np.float32).reshape(3, 4)
        file["layers/dense/vars/1"] = np.int64(3)
    return stream.getvalue()


def keras_archive():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("config.json", '{"class_name": "Functional"}')
        archive.writestr("model.weights.h5", hdf5())
    return stream.getvalue()


def fragile(data):
    """Bytes of the free lists of HDF5; the HDF5 library itself loops when one leads in a circle."""
    heaps = [at for at in range(len(data)) if data[at : at + 4] == b"HEAP"]
    return {at + offset for at in heaps for offset in range(128)}


GOOD = {
    "npz": (FILES / "14_opt_target.npz").read_bytes(),
    "npz_deflated": npz_deflated(),
    "safetensors": (FILES / "16_dtypes.safetensors").read_bytes(),
    "torch": (FILES / "01_state_dict.pth").read_bytes(),
    "torch_legacy": (FILES / "02_legacy.pth").read_bytes(),
    "torch_malicious": (FILES / "07_malicious.pth").read_bytes(),
    "hdf5": hdf5(),
    "keras": keras_archive(),
}


@pytest.fixture(scope="module", autouse=True)
def empty_folder(tmp_path_factory):
    """An empty working folder in which no process can be started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("empty"))
        patch.setattr(os, "system", lambda command: pytest.fail(f"ran {command}"))
        patch.setattr("posix.system", lambda command: pytest.fail(f"ran {command}"))
        yield


def outcome(path):
    """Number of arrays read, after having tried all; 0 if the file is refused."""
    count = 0
    try:
        with read(path) as checkpoint:
            for name in checkpoint:
                try:
                    assert checkpoint[name].shape == checkpoint.shape(name)
                    count += 1
                except CheckpointError:
                    pass
    except CheckpointError:
        pass
    assert os.listdir() == []
    return count


@pytest.mark.parametrize("name", GOOD)
def test_truncated_anywhere(name, tmp_path_factory):
    data, path = GOOD[name], tmp_path_factory.mktemp("files") / name

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.integers(0, len(data) - 1))
    def truncate(size):
        path.write_bytes(data[:size])
        assert outcome(path) == 0

    truncate()


@pytest.mark.parametrize("name", GOOD)
def test_changed_anywhere(name, tmp_path_factory):
    data, path = GOOD[name], tmp_path_factory.mktemp("files") / name
    sound = sorted(set(range(len(data))) - (fragile(data) if name == "hdf5" else set()))
    change = st.tuples(st.sampled_from(sound), st.integers(1, 255) | st.sampled_from([1, 64, 128]))

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.lists(change, min_size=1, max_size=8))
    def flip(changes):
        damaged = bytearray(data)
        for position, bits in changes:
            damaged[position] ^= bits
        path.write_bytes(damaged)
        outcome(path)

    flip()
