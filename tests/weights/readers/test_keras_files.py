"""Keras weight files and archives: names, values, configuration, nothing from outside the file."""

import io
import json
import zipfile

import h5py
import keras
import numpy as np
import pytest

from keras_vit.weights.readers import CheckpointError, read
from keras_vit.weights.readers import keras_files as reader


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")])


def hdf5(arrays):
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return stream.getvalue()


def refused(path, match):
    with pytest.raises(CheckpointError, match=match):
        with read(path) as checkpoint:
            list(checkpoint.values())


def test_weights_file(tmp_path, model):
    model.save_weights(tmp_path / "x.weights.h5")
    with read(tmp_path / "x.weights.h5") as checkpoint:
        assert checkpoint.container == "keras" and checkpoint.metadata == {}
        assert set(checkpoint) == {"layers/dense/vars/0", "layers/dense/vars/1"}
        assert checkpoint.shape("layers/dense/vars/0") == (3, 2)
        assert checkpoint.dtype("layers/dense/vars/0") == "float32"
        np.testing.assert_array_equal(checkpoint["layers/dense/vars/0"], model.get_weights()[0])


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archive(tmp_path, model, compression):
    model.save(tmp_path / "x.keras")
    with zipfile.ZipFile(tmp_path / "x.keras") as saved:
        with zipfile.ZipFile(tmp_path / "y", "w", compression) as copied:
            for name in saved.namelist():
                copied.writestr(name, saved.read(name))
        config = json.loads(saved.read("config.json"))
    with read(tmp_path / "y") as checkpoint:
        assert checkpoint.container == "keras"
        assert checkpoint.metadata == {"config": config}
        assert config["class_name"] == "Sequential"
        kernel, bias = model.get_weights()
        np.testing.assert_array_equal(checkpoint["layers/dense/vars/0"], kernel)
        np.testing.assert_array_equal(checkpoint["layers/dense/vars/1"], bias)


def test_bfloat16(tmp_path):
    layer = keras.layers.Dense(2, dtype="bfloat16", name="dense")
    model = keras.Sequential([keras.Input((3,)), layer])
    model.save_weights(tmp_path / "x.weights.h5")
    with read(tmp_path / "x.weights.h5") as checkpoint:
        assert checkpoint.dtype("layers/dense/vars/0") == "bfloat16"
        kernel = checkpoint["layers/dense/vars/0"]
        assert kernel.dtype == np.float32
        np.testing.assert_array_equal(kernel, np.float32(keras.ops.convert_to_numpy(layer.kernel)))


def test_types(tmp_path):
    arrays = {
        "a/count": np.int64(3),
        "flags": np.array([True, False]),
        "big_endian": np.arange(3, dtype=">f8"),
        "empty": np.zeros((0, 2), np.float16),
    }
    (tmp_path / "x").write_bytes(hdf5(arrays))
    with read(tmp_path / "x") as checkpoint:
        for name, expected in arrays.items():
            assert checkpoint.dtype(name) == expected.dtype.name
            assert checkpoint[name].dtype == expected.dtype.newbyteorder("=")
            np.testing.assert_array_equal(checkpoint[name], expected)


def test_compressed_datasets(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", data=np.arange(9999), compression="gzip", shuffle=True)
    with read(tmp_path / "x") as checkpoint:
        np.testing.assert_array_equal(checkpoint["a"], np.arange(9999))


@pytest.mark.parametrize("chunks", [None, (2**20,)])
def test_dataset_that_was_never_written_is_refused(tmp_path, chunks):
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", (2**40,), "f4", chunks=chunks)
    refused(tmp_path / "x", "'a': damaged, needs 4398046511104 bytes and holds 0")


def test_shape_beyond_the_stored_bytes_is_refused(tmp_path):
    shape, larger = (77_777).to_bytes(8, "little"), (77_778).to_bytes(8, "little")
    data = hdf5({"a": np.zeros(77_777, np.float32)})
    assert shape in data
    (tmp_path / "x").write_bytes(data.replace(shape, larger))
    refused(tmp_path / "x", "'a': .*damaged")


def test_dataset_of_which_little_was_written_is_refused(tmp_path):
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", (2**40,), "f4", chunks=(2**10,), compression="gzip")[0] = 1
    refused(tmp_path / "x", "'a': damaged, needs 4398046511104 bytes")


def test_nothing_is_read_from_other_files(tmp_path):
    np.arange(4, dtype="f4").tofile(tmp_path / "secret")
    (tmp_path / "other").write_bytes(hdf5({"a": np.arange(4)}))
    with h5py.File(tmp_path / "x", "w") as file:
        file.create_dataset("a", (4,), "f4", external=[(str(tmp_path / "secret"), 0, 16)])
    refused(tmp_path / "x", "'a': its data lies in another file")
    with h5py.File(tmp_path / "x", "w") as file:
        layout = h5py.VirtualLayout((4,), "i8")
        layout[:] = h5py.VirtualSource(tmp_path / "other", "a", (4,))
        file.create_virtual_dataset("a", layout)
    refused(tmp_path / "x", "'a': its data lies in another file")
    with h5py.File(tmp_path / "x", "w") as file:
        file["a"] = h5py.ExternalLink(tmp_path / "other", "a")
        file["b"] = np.arange(2)
    with read(tmp_path / "x") as checkpoint:
        assert list(checkpoint) == ["b"]


def test_datasets_of_other_types_are_refused(tmp_path):
    (tmp_path / "x").write_bytes(hdf5({"a": "text"}))
    refused(tmp_path / "x", "'a': only arrays of numbers are read. Received: dtype object")
    (tmp_path / "x").write_bytes(hdf5({"a": h5py.Empty("f4")}))
    refused(tmp_path / "x", "'a': only arrays of numbers are read")


def test_checksum_of_an_archive_is_compared(tmp_path, model):
    path = tmp_path / "x.keras"
    model.save(path)
    data = bytearray(path.read_bytes())
    data[data.index(model.get_weights()[0].tobytes())] ^= 1
    path.write_bytes(data)
    refused(path, "entry 'model.weights.h5': truncated or damaged .*CRC-32")


def test_sharded_weights_are_refused(tmp_path, model):
    model.save_weights(tmp_path / "x.weights.json", max_shard_size=1)
    refused(tmp_path / "x.weights.json", r"save_weights\('name.weights.h5'\)")
    with zipfile.ZipFile(tmp_path / "x.keras", "w") as archive:
        archive.writestr("model.weights.json", "{}")
    refused(tmp_path / "x.keras", "Keras weights in several files")


def test_archive_with_damaged_configuration_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        archive.writestr("model.weights.h5", hdf5({"a": 1}))
        archive.writestr("config.json", "[]")
    refused(tmp_path / "x", "config.json: a JSON object is expected")


def test_damaged_file_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(hdf5({"a": 1})[:-1])
    refused(tmp_path / "x", "HDF5 file: truncated or damaged")
    (tmp_path / "x").write_bytes(hdf5({}))
    refused(tmp_path / "x", "a keras checkpoint without any array")


def test_window_is_a_file_of_its_own():
    window = reader._Window(io.BytesIO(b"abcdefgh"), 2, 4)
    assert window.read() == b"cdef" and window.read(1) == b""
    assert window.seek(-3, io.SEEK_END) == 1 and window.read(9) == b"def"
    assert window.seek(1) == 1 and window.seek(1, io.SEEK_CUR) == 2 and window.read(1) == b"e"
    assert window.seek(9) == 9 and window.read(1) == b""
