"""torch files put together opcode by opcode: layouts, views, wrappers, and what is refused."""

import pickle
import struct
import zipfile

import numpy as np
import pytest

from keras_vit.weights.readers import CheckpointError, read

END = b"."


def plain(value):
    return pickle.dumps(value, protocol=2)[2:-1]


def named(dotted):
    module, _, name = dotted.rpartition(".")
    return f"c{module}\n{name}\n".encode()


def call(dotted, *arguments):
    return named(dotted) + b"(" + b"".join(arguments) + b"tR"


def dictionary(items):
    return b"}(" + b"".join(plain(key) + value for key, value in items.items()) + b"u"


def storage(key, count, kind="torch.FloatStorage"):
    parts = plain("storage") + named(kind) + plain(key) + plain("cpu") + plain(count)
    return b"(" + parts + b"tQ"


def tensor(stored, shape, strides, offset=0, rebuild="torch._utils._rebuild_tensor_v2", more=()):
    hooks = call("collections.OrderedDict")
    layout = plain(offset) + plain(shape) + plain(strides)
    return call(rebuild, stored, layout, plain(False), hooks, *more)


def vector(key="0", count=6):
    return tensor(storage(key, count), (count,), (1,))


def write(path, tree, storages=None, **members):
    values = {"0": np.arange(6, dtype="f4").tobytes()} if storages is None else storages
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + tree + END)
        for key, data in values.items():
            archive.writestr(f"archive/data/{key}", data)
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)
    return path


def write_legacy(path, tree, storages, system=None, protocol=1001):
    system = {"little_endian": True} if system is None else system
    with open(path, "wb") as file:
        for head in (0x1950A86A20F9469CFC6C, protocol, system):
            pickle.dump(head, file, protocol=2)
        file.write(b"\x80\x02" + tree + END)
        pickle.dump(list(storages), file, protocol=2)
        for values in storages.values():
            file.write(struct.pack("<q", values.size) + values.tobytes())
    return path


def refused(path, match):
    with pytest.raises(CheckpointError, match=match):
        with read(path) as checkpoint:
            list(checkpoint.values())


def one(path):
    with read(path) as checkpoint:
        assert list(checkpoint) == ["w"]
        assert checkpoint["w"].shape == checkpoint.shape("w")
        return checkpoint["w"]


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "expected"),
    [
        ((2, 3), (3, 1), 0, [[0, 1, 2], [3, 4, 5]]),
        ((3, 2), (1, 3), 0, [[0, 3], [1, 4], [2, 5]]),
        ((2,), (3,), 2, [2, 5]),
        ((2, 2), (0, 1), 4, [[4, 5], [4, 5]]),
        ((), (), 5, 5),
        ((1, 2), (2**70, 1), 1, [[1, 2]]),
        ((0, 3), (3, 1), 99, np.zeros((0, 3))),
    ],
)
def test_views_of_a_storage(tmp_path, shape, strides, offset, expected):
    tree = dictionary({"w": tensor(storage("0", 6), shape, strides, offset)})
    path = write(tmp_path / "x", tree)
    np.testing.assert_array_equal(one(path), np.float32(expected))
    assert one(path).dtype == np.float32


def test_part_of_a_storage_does_not_keep_the_whole_in_memory(tmp_path):
    path = write(tmp_path / "x", dictionary({"w": tensor(storage("0", 6), (2,), (1,), 1)}))
    assert one(path).base is None


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((7,), (1,), 0), ((6,), (1,), 1), ((2, 3), (4, 1), 0), ((2,), (2**70,), 0), ((), (), 6)],
)
def test_view_beyond_its_storage_is_refused(tmp_path, shape, strides, offset):
    tree = dictionary({"w": tensor(storage("0", 6), shape, strides, offset)})
    refused(write(tmp_path / "x", tree), "tensor 'w': reaches beyond its storage of 24 bytes")


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "match"),
    [
        ((2,), (-1,), 3, "offset and strides must be whole numbers"),
        ((2,), (1,), -1, "offset and strides must be whole numbers"),
        ((2,), (1.0,), 0, "offset and strides must be whole numbers"),
        ((-2,), (1,), 0, "a shape holds whole numbers"),
        (("2",), (1,), 0, "a shape holds whole numbers"),
        ((2, 2), (1,), 0, "tensor 'w': truncated or damaged"),
        ((2**40, 2**40), (0, 0), 0, "no array is that large"),
        ((1,) * 33, (1,) * 33, 0, "no array is that large"),
    ],
)
def test_impossible_layout_is_refused(tmp_path, shape, strides, offset, match):
    tree = dictionary({"w": tensor(storage("0", 6), shape, strides, offset)})
    refused(write(tmp_path / "x", tree), match)


def test_storage_must_be_there_and_have_its_length(tmp_path):
    path = tmp_path / "x"
    refused(write(path, dictionary({"w": vector("1")})), "tensor 'w': truncated or damaged")
    refused(write(path, dictionary({"w": vector(count=5)})), "its storage holds 24 bytes, not 20")


def test_untyped_storage_takes_the_type_from_the_tensor(tmp_path):
    stored = storage("0", 3, "torch.storage.UntypedStorage")
    rebuild = "torch._utils._rebuild_tensor_v3"
    tree = tensor(stored, (3,), (1,), 0, rebuild, [named("torch.float8_e5m2")])
    path = write(tmp_path / "x", dictionary({"w": tree}), {"0": b"\x3c\xc0\x7b"})
    np.testing.assert_array_equal(one(path), np.float32([1, -2, 57344]))
    with read(path) as checkpoint:
        assert checkpoint.dtype("w") == "float8_e5m2"


@pytest.mark.parametrize(
    ("kind", "dtype", "values"),
    [
        ("Double", "float64", np.float64([1.5, -2])),
        ("Int", "int32", np.int32([1, -2])),
        ("Byte", "uint8", np.uint8([1, 255])),
        ("Bool", "bool", np.bool_([True, False])),
        ("ComplexFloat", "complex64", np.complex64([1 + 2j, 3])),
    ],
)
def test_typed_storages(tmp_path, kind, dtype, values):
    tree = dictionary({"w": tensor(storage("0", 2, f"torch.{kind}Storage"), (2,), (1,))})
    path = write(tmp_path / "x", tree, {"0": values.tobytes()})
    with read(path) as checkpoint:
        assert checkpoint.dtype("w") == dtype
        assert checkpoint["w"].dtype == values.dtype
        np.testing.assert_array_equal(checkpoint["w"], values)


def test_conjugate_view_is_refused(tmp_path):
    tree = dictionary({"w": tensor(storage("0", 6), (6,), (1,), more=[plain({"conj": True})])})
    refused(write(tmp_path / "x", tree), "tensor 'w': conjugate and negative views are not read")


@pytest.mark.parametrize(
    "dotted",
    [
        "posix.system",
        "builtins.eval",
        "builtins.getattr",
        "torch.storage._load_from_bytes",
        "torch._utils._rebuild_qtensor",
        "torch._utils._rebuild_sparse_tensor",
        "torch.nn.modules.linear.Linear",
        "argparse.ArgumentParser",
    ],
)
def test_anything_else_is_refused_by_its_name(tmp_path, dotted):
    path = tmp_path / "x"
    match = f"refers to {dotted},.* nothing was run"
    refused(write(path, call(dotted, plain("touch PWNED"))), match)
    refused(write(path, dictionary({"w": vector(), "x": call(dotted)})), match)
    refused(write(path, dictionary({"w": vector(), "x": named(dotted)})), match)
    nested = b"](" + dictionary({"y": call(dotted)}) + b"e"
    refused(write(path, dictionary({"w": vector(), "x": nested})), match)
    inside_a_known_one = call("torch._utils._rebuild_parameter", call(dotted), plain(True))
    refused(write(path, dictionary({"w": inside_a_known_one})), match)


@pytest.mark.parametrize(
    "dotted", ["argparse.Namespace", "yacs.config.CfgNode", "pathlib.PosixPath", "builtins.set"]
)
def test_training_arguments_are_skipped_whatever_is_inside(tmp_path, dotted):
    state = dictionary({"run": call("posix.system", plain("touch PWNED"))})
    built = [
        named(dotted) + b")\x81" + state + b"b",  # as an object with attributes
        named(dotted) + b")\x81(" + plain("run") + call("posix.system") + b"u",  # as a dictionary
        call(dotted, call("posix.system", plain("touch PWNED"))),  # by its arguments
    ]
    for arguments in built:
        tree = dictionary({"state_dict": dictionary({"w": vector()}), "args": arguments})
        np.testing.assert_array_equal(one(write(tmp_path / "x", tree)), np.float32(range(6)))


def test_attributes_of_dictionaries_and_tensors_are_ignored(tmp_path):
    attributes = dictionary({"items": plain(1), "args": plain(2), "name": plain("posix.system")})
    weights = call("collections.OrderedDict") + b"(" + plain("w") + vector() + attributes + b"bu"
    path = write(tmp_path / "x", weights + attributes + b"b")
    np.testing.assert_array_equal(one(path), np.float32(range(6)))


@pytest.mark.parametrize("order", [1, -1])
def test_averaged_weights_are_preferred(tmp_path, order):
    wrappers = ["state_dict_ema", "model_ema", "state_dict", "model", "module", "teacher"]
    for best in range(len(wrappers)):
        held = wrappers[best:][::order]
        storages = {name: np.full(6, wrappers.index(name), "f4").tobytes() for name in held}
        tree = dictionary({name: dictionary({"w": vector(name)}) for name in held})
        np.testing.assert_array_equal(one(write(tmp_path / "x", tree, storages)), np.full(6, best))


def test_wrapper_without_tensors_is_passed_over(tmp_path):
    tree = dictionary(
        {
            "model_ema": plain(None),
            "state_dict": plain({"a": 1}),
            "model": dictionary({"w": vector()}),
        }
    )
    assert one(write(tmp_path / "x", tree)).shape == (6,)


def test_what_is_no_tensor_is_left_out(tmp_path):
    tree = dictionary({"w": vector(), "epoch": plain(3), 7: vector(), "note": plain("x")})
    assert one(write(tmp_path / "x", tree)).shape == (6,)


def test_module_prefix_is_stripped_from_all_or_none(tmp_path):
    path = write(tmp_path / "x", dictionary({"module.a": vector(), "module.module.b": vector()}))
    with read(path) as checkpoint:
        assert list(checkpoint) == ["a", "module.b"]
    path = write(tmp_path / "x", dictionary({"module.a": vector(), "b": vector()}))
    with read(path) as checkpoint:
        assert list(checkpoint) == ["module.a", "b"]
    path = write(tmp_path / "x", dictionary({"backbone.a": vector()}))
    with read(path) as checkpoint:
        assert list(checkpoint) == ["backbone.a"]


def test_file_without_named_tensors_is_refused(tmp_path):
    path = tmp_path / "x"
    refused(write(path, vector()), "no dictionary of tensors. Received: one torch._utils._rebuild")
    refused(write(path, b"](" + vector() + b"e"), "no dictionary of tensors. Received: one list")
    refused(write(path, plain({"epoch": 3})), r"no tensors at its top .* keys \['epoch'\]")


def test_torchscript_and_byte_order_are_refused(tmp_path):
    tree, path = dictionary({"w": vector()}), tmp_path / "x"
    refused(
        write(path, tree, **{"constants.pkl": b"."}), r"TorchScript program. Save model.state_d"
    )
    refused(write(path, tree, byteorder=b"big"), "big-endian machine")
    assert one(write(path, tree, byteorder=b"little")).shape == (6,)


@pytest.mark.parametrize(
    ("pickled", "match"),
    [
        (b"r\xff\xff\xff\x7f", "pickle: damaged, item 2147483647"),
        (b"\x82\x01", "extension registry"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\x00", "pickle: truncated or damaged"),
        (b"0", "pickle: truncated or damaged"),
        (plain(["storage"]) + b"Q", "pickle: truncated or damaged"),
        (storage("0", 6, "torch.QInt8Storage"), "tensors of torch.QInt8Storage are not read"),
        (storage("0", "6"), "an unknown reference to data"),
    ],
)
def test_hostile_pickle_is_refused(tmp_path, pickled, match):
    refused(write(tmp_path / "x", pickled), match)


def test_compressed_pickle_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + b"0" * 10_000 + END)
    refused(tmp_path / "x", "data.pkl': compressed")


def test_legacy_layout(tmp_path):
    tree = {"a": vector("7"), "b": tensor(storage("3", 4, "torch.LongStorage"), (2, 2), (1, 2))}
    storages = {"3": np.arange(4), "7": np.arange(6, dtype="f4")}
    with read(write_legacy(tmp_path / "x", dictionary(tree), storages)) as checkpoint:
        np.testing.assert_array_equal(checkpoint["a"], np.float32(range(6)))
        np.testing.assert_array_equal(checkpoint["b"], np.int64([[0, 2], [1, 3]]))
        assert checkpoint["b"].dtype == np.int64


def test_damaged_legacy_layout_is_refused(tmp_path):
    tree, path = dictionary({"w": vector()}), tmp_path / "x"
    good = {"0": np.arange(6, dtype="f4")}
    refused(write_legacy(path, tree, {"0": np.arange(5, dtype="f4")}), "the file ends early")
    refused(write_legacy(path, tree, {"0": np.arange(8, dtype="f4")}), "its two lengths differ")
    refused(write_legacy(path, tree, good | {"1": good["0"]}), "list of storages: truncated")
    refused(write_legacy(path, tree, {}), "tensor 'w': truncated or damaged")
    refused(write_legacy(path, tree, good, protocol=1000), "unknown protocol version 1000")
    refused(write_legacy(path, tree, good, {"little_endian": False}), "big-endian machine")
    refused(write_legacy(path, tree, good, [True]), "unknown protocol version")
