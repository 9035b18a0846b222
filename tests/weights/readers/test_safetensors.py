"""safetensors: the header is checked in every respect; shards are opened once each."""

import builtins
import collections
import json
import os
import shutil

import numpy as np
import pytest

from keras_vit.weights.readers import CheckpointError, read
from keras_vit.weights.readers import safetensors as reader

EIGHT = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path, header, data=b"\0" * 8):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def refused(path, match):
    with pytest.raises(CheckpointError, match=match):
        read(path)


def shards(folder, weight_map, held=None):
    """A folder of an index and shards, each of whose arrays holds the length of its name."""
    folder.mkdir()
    files = collections.defaultdict(list)
    for name, shard in (held or weight_map).items():
        files[shard].append(name)
    for shard, names in files.items():
        header = {
            name: {"dtype": "I64", "shape": [], "data_offsets": [8 * i, 8 * i + 8]}
            for i, name in enumerate(names)
        }
        data = b"".join(len(name).to_bytes(8, "little") for name in names)
        write(folder / shard, header, data)
    index = {"metadata": {"total_size": 8 * len(weight_map)}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_values_and_metadata(tmp_path):
    header = {"__metadata__": {"format": "pt"}, "a": EIGHT}
    with read(write(tmp_path / "x", header, np.float32([1, 2]).tobytes())) as checkpoint:
        assert checkpoint.container == "safetensors"
        assert checkpoint.metadata == {"format": "pt"}
        assert dict(checkpoint).keys() == {"a"}
        np.testing.assert_array_equal(checkpoint["a"], np.float32([1, 2]))
        checkpoint["a"][:] = 3  # its own memory
        np.testing.assert_array_equal(checkpoint["a"], np.float32([1, 2]))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [3]}, r"needs 12 bytes"),
        ({"shape": [2.0]}, "a shape holds whole numbers"),
        ({"shape": [True, 2]}, "a shape holds whole numbers"),
        ({"shape": [-1, -2]}, "a shape holds whole numbers"),
        ({"shape": 2}, "'a', description: truncated or damaged"),
        ({"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}, "no array is that large"),
        ({"dtype": "F4"}, "array 'a': dtype 'F4' is none of"),
        ({"dtype": ["F32"]}, "'a', description: truncated or damaged"),
        ({"data_offsets": [8, 16]}, "offsets leave a gap; it begins at 8"),
        ({"data_offsets": [-8, 0]}, "offsets overlap"),
        ({"data_offsets": [0.0, 8.0]}, "its offsets are 0.0 to 8.0"),
        ({"data_offsets": [0]}, "'a', description: truncated or damaged"),
    ],
)
def test_description_that_does_not_fit_is_refused(tmp_path, change, match):
    refused(write(tmp_path / "x", {"a": EIGHT | change}), match)


@pytest.mark.parametrize(
    ("header", "match"),
    [
        (b"{", "safetensors header: truncated or damaged"),
        (b'{"a": \xff}', "safetensors header: truncated or damaged"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "safetensors header: truncated or dam"),
        ({"a": 1}, "'a', description: truncated or damaged"),
        ({"a": EIGHT, "__metadata__": [1]}, "__metadata__ is no dictionary"),
        ({"a": EIGHT, "b": EIGHT}, "array 'b': offsets overlap; it begins at 0"),
        ({"__metadata__": {}}, "the arrays end at offset 0, the file at 8"),
    ],
)
def test_header_that_does_not_fit_is_refused(tmp_path, header, match):
    refused(write(tmp_path / "x", header), match)


def test_file_without_arrays_is_refused(tmp_path):
    refused(write(tmp_path / "x", {}, b""), "a safetensors checkpoint without any array")


@pytest.mark.parametrize("size", [-1, 1])
def test_file_of_another_length_is_refused(tmp_path, size):
    refused(write(tmp_path / "x", {"a": EIGHT}, b"\0" * (8 + size)), "truncated or damaged")


def test_file_that_shrinks_after_opening(tmp_path):
    header = {"a": {"dtype": "U8", "shape": [100_000], "data_offsets": [0, 100_000]}}
    path = write(tmp_path / "x", header, b"\0" * 100_000)
    with read(path) as checkpoint:
        os.truncate(path, 50_000)
        with pytest.raises(CheckpointError, match="'a': the file ends within the 100000 bytes"):
            checkpoint["a"]


def test_shards_are_opened_once_each(tmp_path, monkeypatch):
    weight_map = {"a": "1.safetensors", "bb": "2.safetensors", "ccc": "1.safetensors"}
    folder, opened = shards(tmp_path / "model", weight_map), collections.Counter()

    def counted(path, mode):
        opened[path.name] += 1
        return builtins.open(path, mode)

    monkeypatch.setattr(reader, "open", counted, raising=False)
    for path in (folder, folder / "model.safetensors.index.json"):
        opened.clear()
        with read(path) as checkpoint:
            assert {name: int(value) for name, value in checkpoint.items()} == {
                "a": 1,
                "bb": 2,
                "ccc": 3,
            }
            assert checkpoint.metadata == {"total_size": 24}
        assert opened == {"1.safetensors": 1, "2.safetensors": 1}


def test_folder_of_one_file(tmp_path):
    write(tmp_path / "model.safetensors", {"a": EIGHT})
    with read(tmp_path) as checkpoint:
        assert list(checkpoint) == ["a"] and checkpoint.path == tmp_path


def test_names_that_the_shards_lack_are_listed(tmp_path):
    weight_map = {"a": "1.safetensors", "b": "1.safetensors", "c": "1.safetensors"}
    folder = shards(tmp_path / "model", weight_map, {"b": "1.safetensors"})
    refused(folder, r"not held by their shards: \['a', 'c'\]")


def test_damaged_shard_is_named(tmp_path):
    folder = shards(tmp_path / "model", {"a": "1.safetensors"})
    write(folder / "1.safetensors", b"{")
    refused(folder, "model: 1.safetensors: safetensors header: truncated or damaged")


@pytest.mark.parametrize("shard", ["../1.safetensors", "/1.safetensors", "b\\1.safetensors"])
def test_shards_lie_beside_the_index(tmp_path, shard):
    folder = shards(tmp_path / "model", {"a": "1.safetensors"})
    index = {"weight_map": {"a": shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(folder, "an index of other files than .safetensors beside it")


def test_folder_that_holds_no_checkpoint_is_refused(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    refused(tmp_path, r"Received: \['saved_model.pb'\]. Give the path of the file instead")
    folder = shards(tmp_path / "model", {"a": "1.safetensors"})
    index = folder / "model.safetensors.index.json"
    shutil.copy(index, folder / "other.safetensors.index.json")
    refused(folder, "one [*].safetensors.index.json")
