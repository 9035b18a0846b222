"""torch files (.pth, .pt, .bin): a pickle that describes tensors, and their bytes.

The pickle is read, but nothing that it names is imported or called. Each class or function in it
becomes a `_Record` of its dotted name and arguments. Afterwards the records of tensors are
interpreted here, those of training arguments are skipped, and any other is refused by its name.
"""

import functools
import io
import mmap
import os
import pickle
import pickletools
import reprlib
from typing import NamedTuple

import numpy as np

from keras_vit.weights.readers.base import (
    STORED,
    CheckpointError,
    Entry,
    byte_count,
    damage,
    decode,
    read_region,
)

LEGACY_MAGIC = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)
_LEGACY_PROTOCOL = 1001

# In the order of preference where a training checkpoint holds several.
_WRAPPERS = ("state_dict_ema", "model_ema", "state_dict", "model", "module", "teacher", "student")

_STORAGES = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexFloatStorage": "complex64",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.storage.UntypedStorage": "uint8",
}
_DTYPES = {f"torch.{name}": name for name in STORED}
_TENSORS = {f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3")}
_PARAMETERS = {f"torch._utils._rebuild_parameter{version}" for version in ("", "_with_state")}
_KNOWN = _TENSORS | _PARAMETERS | _STORAGES.keys() | _DTYPES.keys()

# What training programs store beside the weights: skipped, whatever is inside.
_SKIPPED = {
    "_codecs.encode",
    "argparse.Namespace",
    "builtins.frozenset",
    "builtins.set",
    "collections.Counter",
    "collections.OrderedDict",
    "collections.defaultdict",
    "datetime.datetime",
    "easydict.EasyDict",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "torch.Size",
    "torch.device",
    "types.SimpleNamespace",
    "yacs.config.CfgNode",
}

_PICKLE_ERRORS = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Record:
    """What a pickle asked to be built: a dotted name and the arguments, never called."""

    name: str

    def __new__(cls, *args, **kwargs):
        record = super().__new__(cls)
        record.args = args
        return record

    def __setstate__(self, state):
        pass

    def __setitem__(self, key, value):
        pass

    def append(self, item):
        pass


class _Dict(dict):
    """An OrderedDict without the attributes that a pickle would give it."""

    name = "collections.OrderedDict"

    def __setstate__(self, state):
        pass


class _Storage(NamedTuple):
    key: str
    dtype: str
    count: int


class _Unpickler(pickle.Unpickler):
    """Builds plain containers, `_Record`s and `_Storage`s, and nothing else."""

    def __init__(self, data):
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.storages = {}

    def find_class(self, module, name):
        dotted = f"{module}.{name}".replace("__builtin__.", "builtins.")
        if dotted in ("collections.OrderedDict", "builtins.dict"):
            return _Dict
        return type("_Record", (_Record,), {"name": dotted})

    def persistent_load(self, identifier):
        kind, storage_type, key, _, count, *view = identifier
        if kind != "storage" or any(view) or type(key) is not str or type(count) is not int:
            raise CheckpointError(f"an unknown reference to data: {reprlib.repr(identifier)}")
        if storage_type.name not in _STORAGES:
            raise CheckpointError(f"tensors of {storage_type.name} are not read")
        self.storages[key] = _Storage(key, _STORAGES[storage_type.name], count)
        return self.storages[key]


def zip_entries(archive) -> dict[str, Entry]:
    """Tensors of the zip layout: a member data.pkl, and one member a storage."""
    pickled = min((name for name in archive.members if name.endswith("/data.pkl")), key=len)
    root = pickled.removesuffix("data.pkl")
    if root + "constants.pkl" in archive.members:
        raise CheckpointError("a TorchScript program. Save model.state_dict() with torch.save")
    byte_order = root + "byteorder"
    if byte_order in archive.members and archive.head(byte_order, 6) != b"little":
        raise CheckpointError("torch file: written on a big-endian machine, which is not read")
    if archive.stored_at(pickled) is None:
        raise CheckpointError(f"entry {pickled!r}: compressed, which torch never does")
    tree, _ = _unpickle(io.BytesIO(archive.read(pickled)))
    folder = root + "data/"
    storages = {
        name.removeprefix(folder): (archive.size(name), functools.partial(archive.read, name))
        for name in archive.members
        if name.startswith(folder)
    }
    return _entries(tree, storages)


def legacy_entries(file) -> dict[str, Entry]:
    """Tensors of the layout before torch 1.6: five pickles, then the storages one by one."""
    size = os.fstat(file.fileno()).st_size
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
        _, protocol, system = (_unpickle(pages)[0] for _ in range(3))
        if protocol != _LEGACY_PROTOCOL or not isinstance(system, dict):
            raise CheckpointError(f"torch file: unknown protocol version {reprlib.repr(protocol)}")
        if system.get("little_endian") is not True:
            raise CheckpointError("torch file: written on a big-endian machine, which is not read")
        tree, known = _unpickle(pages)
        keys, _ = _unpickle(pages)
        position = pages.tell()
    storages = {}
    with damage("list of storages", LookupError, TypeError):
        for storage in [known[key] for key in keys]:
            length = _storage_bytes(storage)
            if position + 8 + length > size:
                raise CheckpointError(f"storage {storage.key!r}: the file ends early; truncated")
            file.seek(position)
            if int.from_bytes(file.read(8), "little") != storage.count:
                raise CheckpointError(f"storage {storage.key!r}: damaged, its two lengths differ")
            read = functools.partial(read_region, file, position + 8, length)
            storages[storage.key] = (length, read)
            position += 8 + length
    return _entries(tree, storages)


def _unpickle(file):
    """The next pickle of a file -> what it holds, and the storages that it refers to."""
    start, largest_index = file.tell(), 0
    with damage("pickle", *_PICKLE_ERRORS):
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name.startswith("EXT"):
                raise CheckpointError("pickle: it refers to the extension registry of Python")
            if opcode.name.endswith("PUT"):
                largest_index = max(largest_index, argument)
        size = file.tell() - start
        if largest_index > size:  # the memo is an array of this length
            raise CheckpointError(f"pickle: damaged, item {largest_index} in {size} bytes")
        file.seek(start)
        unpickler = _Unpickler(file.read(size))
        return unpickler.load(), unpickler.storages


def _entries(tree, storages) -> dict[str, Entry]:
    """Tensors of an unpickled file; `storages` maps keys to (bytes, function that reads them)."""
    _refuse_unknown(tree)
    tensors = _state_dict(tree)
    prefix = "module." if all(name.startswith("module.") for name in tensors) else ""
    return {
        name.removeprefix(prefix): _entry(name, tensor, storages)
        for name, tensor in tensors.items()
    }


def _refuse_unknown(tree):
    """Name the first class or function that is neither a tensor's nor a training argument's."""
    pending, seen = [tree], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            pending += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            pending += item
        elif isinstance(item, _Record | type):
            if item.name in _SKIPPED:
                continue
            if item.name not in _KNOWN:
                raise CheckpointError(
                    f"the pickle refers to {item.name}, which only running code could build; "
                    "nothing was run. A file of weights holds tensors in plain dictionaries: if "
                    "this is a pickled model, save its state_dict() instead"
                )
            if isinstance(item, _Record):
                pending += item.args


def _state_dict(tree) -> dict[str, _Record]:
    """The tensors by name, out of the wrapper of a training checkpoint if there is one."""
    if not isinstance(tree, dict):
        kind = tree.name if isinstance(tree, _Record) else type(tree).__name__
        raise CheckpointError(f"torch file: no dictionary of tensors. Received: one {kind}")
    for candidate in [*(tree.get(wrapper) for wrapper in _WRAPPERS), tree]:
        tensors = candidate if isinstance(candidate, dict) else {}
        tensors = {k: v for k, v in tensors.items() if isinstance(k, str) and _is_tensor(v)}
        if tensors:
            return tensors
    raise CheckpointError(
        f"torch file: no tensors at its top or under one of {list(_WRAPPERS)}. "
        f"Received: keys {reprlib.repr(list(tree))}"
    )


def _is_tensor(item) -> bool:
    return isinstance(item, _Record) and item.name in _TENSORS | _PARAMETERS


def _entry(name, record, storages) -> Entry:
    with damage(f"tensor {name!r}", ValueError, TypeError, LookupError, AttributeError):
        while record.name in _PARAMETERS:
            record = record.args[0]
        storage, offset, shape, strides, *rest = record.args
        rest = rest[2:]  # without requires_grad and hooks
        dtype = _DTYPES[rest.pop(0).name] if record.name.endswith("_v3") else storage.dtype
        if any(rest):
            raise CheckpointError(f"tensor {name!r}: conjugate and negative views are not read")
        length, read = storages[storage.key]
        if length != _storage_bytes(storage):
            raise ValueError(f"its storage holds {length} bytes, not {_storage_bytes(storage)}")
        strides = _checked_strides(name, length, STORED[dtype].itemsize, offset, shape, strides)
    return Entry(shape, dtype, functools.partial(_load, read, dtype, offset, shape, strides))


def _checked_strides(name, length, itemsize, offset, shape, strides) -> tuple[int, ...]:
    """Strides in items, 0 where they do not matter; refuses what leaves the storage."""
    empty = byte_count(name, shape, itemsize) == 0
    if not all(type(number) is int and number >= 0 for number in (offset, *strides)):
        raise ValueError("its offset and strides must be whole numbers")
    axes = list(zip(shape, strides, strict=True))
    end = 0 if empty else offset + 1 + sum((size - 1) * stride for size, stride in axes)
    if end * itemsize > length:
        raise CheckpointError(
            f"tensor {name!r}: reaches beyond its storage of {length} bytes. Received: "
            f"offset={offset}, shape={shape}, strides={strides}"
        )
    return tuple(0 if empty or size == 1 else stride for size, stride in axes)


def _load(read, dtype, offset, shape, strides):
    data = read()
    items = decode(data[: data.size - data.size % STORED[dtype].itemsize], dtype)
    steps = [stride * items.itemsize for stride in strides]
    view = np.lib.stride_tricks.as_strided(items[offset:], shape, steps)
    return view.copy() if view.size < items.size else view  # a part would keep the whole


def _storage_bytes(storage) -> int:
    return storage.count * STORED[storage.dtype].itemsize
