"""numpy archives: types, layouts, where the weights lie, and what is refused."""

import io
import zipfile

import numpy as np
import pytest

from keras_vit.weights.readers import CheckpointError, read


def npy(array):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.asarray(array))
    return stream.getvalue()


def npy_header(text, data=b"", version=b"\x01\x00"):
    size = len(text).to_bytes(2, "little")
    return b"\x93NUMPY" + version + size + text.encode("latin1") + data


def write(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def refused(path, match):
    with pytest.raises(CheckpointError, match=match):
        with read(path) as checkpoint:
            list(checkpoint.values())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_types_and_layouts(tmp_path, save):
    arrays = {
        "a/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "big_endian": np.arange(3, dtype=">f4"),
        "half": np.float16([1, 2]),
        "step": np.int64(7),
        "flags": np.array([True, False]),
        "empty": np.zeros((0, 3), np.float32),
        "label": np.array("vit"),
    }
    save(tmp_path / "x.npz", **arrays)
    with read(tmp_path / "x.npz") as checkpoint:
        assert checkpoint.container == "npz" and checkpoint.metadata == {}
        assert list(checkpoint) == list(arrays)
        assert checkpoint.dtype("big_endian") == "float32"
        for name, expected in arrays.items():
            assert checkpoint.shape(name) == expected.shape
            assert checkpoint[name].dtype == expected.dtype.newbyteorder("=")
            np.testing.assert_array_equal(checkpoint[name], expected)


def test_arrays_can_be_written_to(tmp_path):
    np.savez(tmp_path / "x", a=np.zeros(3))
    with read(tmp_path / "x.npz") as checkpoint:
        checkpoint["a"][:] = 1
        np.testing.assert_array_equal(checkpoint["a"], 0)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["params/img/a", "params/t", "opt/mu/a", "step"], {"img/a": 0, "t": 1}),
        (["params/a", "opt/target/a", "a"], {"a": 1}),
        (["opt/target/params/a", "opt/state/a"], {"params/a": 0}),
        (["a", "b/params/c"], {"a": 0, "b/params/c": 1}),
    ],
)
def test_weights_are_found_beside_the_optimizer(tmp_path, names, found):
    np.savez(tmp_path / "x", **{name: index for index, name in enumerate(names)})
    with read(tmp_path / "x.npz") as checkpoint:
        assert {name: int(array) for name, array in checkpoint.items()} == found


def test_objects_left_out_with_the_optimizer_do_not_matter(tmp_path):
    np.savez(tmp_path / "x", **{"params/a": 1, "opt/a": np.array([None])})
    with read(tmp_path / "x.npz") as checkpoint:
        assert list(checkpoint) == ["a"]


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", "'a': only arrays of numbers"),
        ("{'descr': '|V4', 'fortran_order': False, 'shape': (1,), }", "only arrays of numbers"),
        (
            "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }",
            "truncated or damag",
        ),
        (
            "{'descr': '<f3', 'fortran_order': False, 'shape': (1,), }",
            "dtype: truncated or damaged",
        ),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", "needs 8 bytes and holds 4"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }", "needs 0 bytes and holds 4"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "truncated or damaged"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 4611686018427387904), }", "large"),
        ("{'descr': '<f4', 'fortran_order': False}", "truncated or damaged"),
        (
            "{'descr': '<f4', 'shape': (1,), 'fortran_order': __import__('os')}",
            "truncated or damag",
        ),
    ],
)
def test_headers_that_are_refused(tmp_path, header, match):
    refused(write(tmp_path / "x", {"a.npy": npy_header(header, b"\0\0\0\0")}), match)


def test_header_fields_in_any_order_and_python_2_integers(tmp_path):
    header = "{'shape': (2L, 1L), 'descr': '<f4', 'fortran_order': False}"
    write(tmp_path / "x", {"a.npy": npy_header(header, np.float32([1, 2]).tobytes())})
    with read(tmp_path / "x") as checkpoint:
        np.testing.assert_array_equal(checkpoint["a"], [[1], [2]])


def test_version_2_of_the_header(tmp_path):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(3), version=(2, 0))
    with read(write(tmp_path / "x", {"a.npy": stream.getvalue()})) as checkpoint:
        np.testing.assert_array_equal(checkpoint["a"], [0, 1, 2])


@pytest.mark.parametrize("name", ["/a.npy", "../a.npy", "b/../../a.npy", "\\a.npy", "b\\..\\a.npy"])
def test_entry_outside_the_archive_is_refused(tmp_path, name):
    refused(write(tmp_path / "x", {"a.npy": npy(1), name: npy(1)}), "a path that leads out")


def test_entry_that_is_no_array_is_refused(tmp_path):
    path = write(tmp_path / "x", {"a.npy": npy(1), "notes.txt": b"x"})
    refused(path, r"\.npy arrays only. Received: entries \['notes.txt'\]")
    refused(write(path, {"a.npy": b"x"}), "no .npy array of version 1 or 2")
    refused(write(path, {"folder/": b""}), "a npz checkpoint without any array")


def test_two_entries_of_one_name_are_refused(tmp_path):
    path = tmp_path / "x"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", npy(1))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.npy", npy(2))
    refused(path, "two entries have one name")


def test_methods_other_than_deflate_are_refused(tmp_path):
    path = write(tmp_path / "x", {"a.npy": npy(np.zeros(99))}, zipfile.ZIP_LZMA)
    refused(path, "packed by a method other than stored or deflate")


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_changed_bytes_are_noticed_when_the_array_is_read(tmp_path, compression):
    values = np.random.default_rng(0).standard_normal(5000)
    path = write(tmp_path / "x", {"a.npy": npy(values), "b.npy": npy(1)}, compression)
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    with read(path) as checkpoint:
        assert checkpoint["b"] == 1
        with pytest.raises(CheckpointError, match="'a': entry 'a.npy': .*(damaged|CRC-32)"):
            checkpoint["a"]


@pytest.mark.parametrize("claim", [2**40, 2**31])
def test_size_claimed_beyond_what_deflate_can_reach_is_refused(tmp_path, claim):
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({claim},), }}"
    path = write(tmp_path / "x", {"a.npy": npy_header(header)}, zipfile.ZIP_DEFLATED)
    refused(path, f"needs {claim} bytes")
    data = bytearray(path.read_bytes())
    where = data.index(b"PK\x01\x02") + 24  # unpacked size in the directory
    data[where : where + 4] = (2**31).to_bytes(4, "little")
    path.write_bytes(data)
    refused(path, "it claims 2147483648 bytes from")
