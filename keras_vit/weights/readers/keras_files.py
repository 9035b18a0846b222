"""Keras .weights.h5 files and .keras archives."""

import functools
import io

import h5py
import numpy as np

from keras_vit.weights.readers.base import (
    CheckpointError,
    Entry,
    byte_count,
    damage,
    decode,
    parse_json,
)

HDF5_MAGIC = b"\x89HDF\r\n\x1a\n"
WEIGHTS, CONFIG, SHARDS = "model.weights.h5", "config.json", "model.weights.json"
SHARDED = (
    "Keras weights in several files (.weights.json) are not read. "
    "Save them as one: model.save_weights('name.weights.h5')"
)
_PACKING_LIMIT = 1032  # deflate, the filter of HDF5, expands no further than that
_ERRORS = (OSError, RuntimeError, ValueError, TypeError, LookupError, MemoryError, OverflowError)


class _Window(io.RawIOBase):
    """A read-only file inside a file."""

    def __init__(self, file, start, size):
        self._file, self._start, self._size, self._position = file, start, size, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = origin + offset
        return self._position

    def readinto(self, buffer):
        wanted = max(0, min(len(buffer), self._size - self._position))
        self._file.seek(self._start + self._position)
        count = self._file.readinto(memoryview(buffer)[:wanted])
        self._position += count
        return count


def archive_entries(archive, stack) -> tuple[dict[str, Entry], dict]:
    """Datasets of a .keras archive, and its parsed configuration under "config"."""
    if SHARDS in archive.members:
        raise CheckpointError(SHARDED)
    archive.verify(WEIGHTS)
    size, start = archive.size(WEIGHTS), archive.stored_at(WEIGHTS)
    if start is None:
        file = io.BytesIO(archive.read(WEIGHTS))
    else:
        file = _Window(archive.file, start, size)
    metadata = {}
    if CONFIG in archive.members:
        metadata["config"] = parse_json(archive.read(CONFIG).tobytes(), CONFIG)
    return entries(file, size, stack), metadata


def entries(file, size, stack) -> dict[str, Entry]:
    """Datasets of an open HDF5 file of `size` bytes, by their paths."""
    loaded = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            loaded[name] = _entry(name, item, size)

    with damage("HDF5 file", *_ERRORS):
        stack.enter_context(h5py.File(file, "r")).visititems(visit)
    return loaded


def _entry(name, dataset, size) -> Entry:
    if dataset.external or dataset.is_virtual:
        raise CheckpointError(f"dataset {name!r}: its data lies in another file, which is refused")
    bfloat16 = dataset.dtype.str == "|V2"  # as Keras writes it
    if dataset.shape is None or not (bfloat16 or dataset.dtype.kind in "biufc"):
        raise CheckpointError(
            f"dataset {name!r}: only arrays of numbers are read. Received: dtype {dataset.dtype}"
        )
    needed = byte_count(name, dataset.shape, dataset.dtype.itemsize)
    held = min(dataset.id.get_storage_size(), size)
    if needed > held * (1 if dataset.chunks is None else _PACKING_LIMIT):
        raise CheckpointError(f"dataset {name!r}: damaged, needs {needed} bytes and holds {held}")
    dtype = "bfloat16" if bfloat16 else dataset.dtype.name
    return Entry(dataset.shape, dtype, functools.partial(_load, name, dataset, bfloat16))


def _load(name, dataset, bfloat16):
    with damage(f"dataset {name!r}", *_ERRORS):
        array = np.asarray(dataset[()])
    if bfloat16:
        return decode(array.reshape(-1).view(np.uint8), "bfloat16").reshape(dataset.shape)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
