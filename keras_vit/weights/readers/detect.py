"""Opening a checkpoint; what a file is, is told by its bytes and never by its name."""

import contextlib
import os
import pathlib
import re

from keras_vit.weights.readers import keras_files, npz, safetensors, torch
from keras_vit.weights.readers.archive import Archive
from keras_vit.weights.readers.base import Checkpoint, CheckpointError, located, parse_json

_EXPECTED = "Expected weights: a .npz, .safetensors, torch .pth, .weights.h5 or .keras file"
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstandard",
    b"7z\xbc\xaf\x27\x1c": "7-zip",
}


def read(path: str | os.PathLike) -> Checkpoint:
    """Open a checkpoint; its arrays are read one by one as they are asked for.

    Nothing in a file is executed, nothing is written, and memory stays in proportion to the file.

    Args:
        path: a .npz, .safetensors, torch .pth/.pt/.bin, .weights.h5 or .keras file; an index of
            safetensors shards; or a folder that holds model.safetensors or such an index. The
            weights inside a training checkpoint are found, and its optimizer is left out.

    Returns:
        A mapping of source names to arrays. Close it, or use it in a `with` statement.

    Raises:
        CheckpointError: the path does not exist, or its bytes are no such checkpoint, damaged, or
            hold more than arrays. Arrays are checked again as they are read.
    """
    path = pathlib.Path(path)
    with contextlib.ExitStack() as stack, located(path):
        container, entries, metadata = _open(path, stack)
        if not entries:
            raise CheckpointError(f"a {container} checkpoint without any array")
        return Checkpoint(path, container, entries, metadata, stack.pop_all().close)


def _open(path, stack):
    if path.is_dir():
        path = _inside_folder(path)
    if not path.is_file():
        raise CheckpointError(f"no such file or folder, seen from {pathlib.Path.cwd()}")
    file = stack.enter_context(open(path, "rb"))
    size, head = os.fstat(file.fileno()).st_size, file.read(512)
    if head.startswith(_ZIP):
        return _open_zip(Archive(file), stack)
    if head.startswith(keras_files.HDF5_MAGIC):
        return "keras", keras_files.entries(file, size, stack), {}
    if head.startswith(torch.LEGACY_MAGIC):
        return "torch", torch.legacy_entries(file), {}
    if head[8:9] == b"{" and not _is_text(head[:8]):  # the length of a JSON header, the header
        return "safetensors", *safetensors.entries(file)
    if head.startswith(b"{") and (index := _index(path)):
        return "safetensors", *safetensors.sharded_entries(index, path.parent, stack)
    raise CheckpointError(f"{_describe(head, size)}. {_EXPECTED}")


def _open_zip(archive, stack):
    if keras_files.WEIGHTS in archive.members or keras_files.SHARDS in archive.members:
        return "keras", *keras_files.archive_entries(archive, stack)
    if any(name.endswith("/data.pkl") for name in archive.members):
        return "torch", torch.zip_entries(archive), {}
    return "npz", npz.entries(archive), {}


def _inside_folder(folder):
    """The one file of a folder that opens its checkpoint."""
    single, indices = folder / "model.safetensors", [*folder.glob("*.safetensors.index.json")]
    if single.is_file():
        return single
    if len(indices) == 1:
        return indices[0]
    raise CheckpointError(
        "a folder is read if it holds model.safetensors or one *.safetensors.index.json. "
        f"Received: {sorted(entry.name for entry in folder.iterdir())[:10]}. "
        "Give the path of the file instead"
    )


def _index(path):
    """The contents of an index of shards; None if the file is some other JSON or text."""
    try:
        contents = parse_json(path.read_bytes(), "JSON")
    except CheckpointError:
        return None
    if safetensors.is_index(contents):
        return contents
    if "weight_map" in contents:
        raise CheckpointError(
            f"an index of other files than .safetensors beside it. {keras_files.SHARDED}"
        )
    return None


def _describe(head, size) -> str:
    """What a file is that is no checkpoint."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    quoted = f"{head[:60].decode('utf-8', 'replace')!r}"
    if size == 0:
        return "the file is empty (0 bytes)"
    if head.startswith(b"version https://git-lfs"):
        length = re.search(rb"\nsize (\d+)", head)
        real = f" of {int(length[1]):,} bytes" if length else ""
        return f"a Git-LFS pointer; fetch the file itself{real}, with git lfs pull"
    for magic, packing in _PACKED.items():
        if head.startswith(magic):
            return f"packed with {packing}; unpack it first"
    if head[257:262] == b"ustar":
        return "a tar archive; unpack it first"
    if head.startswith(npz.NPY_MAGIC):
        return "a single .npy array without a name"
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "a Python pickle that torch.save did not write; pickles are never run"
    if start.startswith((b"<!doctype html", b"<html")):
        return f"an HTML page, beginning {quoted}; download the file again"
    if _is_text(head):
        return f"text, beginning {quoted}"
    return f"unknown or damaged, beginning with the bytes {head[:16].hex(' ')}"


def _is_text(data) -> bool:
    return all(byte >= 32 or byte in b"\t\r\n" for byte in data)
