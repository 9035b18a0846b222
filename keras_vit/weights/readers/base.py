"""The lazy mapping that every reader fills, and the checks that all readers share."""

import contextlib
import dataclasses
import json
import math
import pathlib
import weakref
from collections.abc import Callable, Iterator, Mapping

import numpy as np

# How the items of each type lie in a file. bfloat16 and float8 are read as bits and widened.
STORED = {
    **{f"float{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    **{f"int{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"complex{bits}": np.dtype(f"<c{bits // 8}") for bits in (64, 128)},
    "bool": np.dtype("u1"),
    "bfloat16": np.dtype("<u2"),
    "float8_e4m3fn": np.dtype("u1"),
    "float8_e5m2": np.dtype("u1"),
}


class CheckpointError(ValueError):
    """A file that is no checkpoint, is damaged, or holds more than arrays."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array of a checkpoint: what the file says about it, and how to read it."""

    shape: tuple[int, ...]
    dtype: str
    load: Callable[[], np.ndarray]


class Checkpoint(Mapping):
    """Source names -> numpy arrays, each read from the file when it is asked for and not kept.

    bfloat16 and float8 arrays come back as float32, which holds them exactly; all others in their
    own dtype.

    Attributes:
        path: the file or folder.
        container: "npz", "safetensors", "torch" or "keras".
        metadata: what the container says beside its arrays; {} if nothing.
    """

    def __init__(self, path, container, entries, metadata, close):
        self.path: pathlib.Path = path
        self.container: str = container
        self.metadata: dict = metadata
        self._entries: dict[str, Entry] = entries
        self._close = weakref.finalize(self, close)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one array, without reading it."""
        return self._entries[name].shape

    def dtype(self, name: str) -> str:
        """Name of one array's type in the file, such as "bfloat16", without reading it."""
        return self._entries[name].dtype

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self._entries[name]
        with located(f"{self.path}, {name!r}"):
            if not self._close.alive:
                raise CheckpointError("the checkpoint is closed; names and shapes alone are left")
            return entry.load()

    def __contains__(self, name) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        """Close the files behind the checkpoint; names and shapes stay available."""
        self._close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        return f"{self.container} checkpoint with {len(self)} arrays: {self.path}"


@contextlib.contextmanager
def located(path):
    """Begin every complaint with the file it is about."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error.__cause__
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error


@contextlib.contextmanager
def damage(what, *errors):
    """Turn a library's complaint about bytes that it cannot make sense of into ours."""
    try:
        yield
    except CheckpointError:
        raise
    except errors as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"{what}: truncated or damaged ({reason})") from error


def parse_json(text, what) -> dict:
    """A JSON object from text or bytes."""
    with damage(what, ValueError, RecursionError):
        contents = json.loads(text)
    if not isinstance(contents, dict):
        raise CheckpointError(f"{what}: a JSON object is expected. Received: {contents!r:.60}")
    return contents


def byte_count(name, shape, itemsize) -> int:
    """Bytes that an array of this shape needs; refuses what is no shape of an array."""
    if not all(type(size) is int and size >= 0 for size in shape):
        raise CheckpointError(f"array {name!r}: damaged, a shape holds whole numbers")
    # numpy counts the bytes as if no axis were empty, and so do we.
    if len(shape) > 32 or math.prod(size or 1 for size in shape) * itemsize >= 2**63:
        raise CheckpointError(f"array {name!r}: no array is that large. Received: {shape}")
    return math.prod(shape) * itemsize


def read_region(file, start, size) -> np.ndarray:
    """`size` bytes from `start` on as uint8; the caller has checked them against the file."""
    data = np.empty(size, np.uint8)
    file.seek(start)
    if file.readinto(data) != size:
        raise CheckpointError(f"the file ends within the {size} bytes from {start} on; truncated")
    return data


def decode(data, dtype) -> np.ndarray:
    """Flat uint8 bytes -> flat array of the type `dtype`; bfloat16 and float8 -> float32."""
    items = data.view(STORED[dtype])
    if dtype == "bool":
        return items != 0
    if dtype == "bfloat16":  # the upper half of a float32
        return (items.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float8_e5m2":  # the upper half of a float16
        return (items.astype(np.uint16) << 8).view(np.float16).astype(np.float32)
    if dtype == "float8_e4m3fn":
        # The bits fit into a float16, whose exponent has a bias of 15 instead of 7.
        sign, magnitude = items & np.uint16(0x80), items & np.uint16(0x7F)
        values = ((sign << 8) | (magnitude << 7)).view(np.float16).astype(np.float32) * 256
        values[magnitude == 0x7F] = np.nan
        return values
    return items
