"""numpy .npz archives: a zip of .npy arrays."""

import re

import numpy as np

from keras_vit.weights.readers.base import CheckpointError, Entry, byte_count, damage, decode

NPY_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_FIELD = re.compile(r"'(\w+)':\s*(?:'([^']*)'|(True|False)|\(([\dL, ]*)\))")
_PLAIN = re.compile(r"[<>|=]?([biufc]\d{1,2}|[SU][1-9]\d*)")
_BFLOAT16 = ("|V2", "<V2")  # numpy knows no bfloat16 and writes its raw bytes
# Where training programs keep the weights beside their optimizer's state.
_WEIGHTS_UNDER = ("opt/target/", "params/")


def entries(archive) -> dict[str, Entry]:
    """Arrays of an archive whose members are all .npy; their headers alone are read.

    If any name begins with opt/target/, or else with params/, only those are returned, without it.
    """
    foreign = [member for member in archive.members if not member.endswith(".npy")]
    if foreign:
        raise CheckpointError(
            "a zip archive, but no checkpoint: an .npz holds .npy arrays only. "
            f"Received: entries {foreign[:5]}"
        )
    names = [member.removesuffix(".npy") for member in archive.members]
    present = (prefix for prefix in _WEIGHTS_UNDER if any(n.startswith(prefix) for n in names))
    prefix = next(present, "")
    return {n.removeprefix(prefix): _entry(archive, n) for n in names if n.startswith(prefix)}


def _entry(archive, name) -> Entry:
    member = name + ".npy"
    with damage(f"array {name!r}, header", ValueError, LookupError):
        start, stored_as, fortran, shape = _parse(archive.head(member, _LONGEST_HEADER))
    items = _item_type(name, stored_as)
    dtype = "bfloat16" if stored_as in _BFLOAT16 else items.name
    needed, held = byte_count(name, shape, items.itemsize), archive.size(member) - start
    if needed != held:
        raise CheckpointError(f"array {name!r}: damaged, needs {needed} bytes and holds {held}")
    order = "F" if fortran == "True" else "C"

    def load():
        data = archive.read(member)[start:]
        if dtype == "bfloat16":
            array = decode(data, dtype)
        else:
            array = data.view(items).astype(items.newbyteorder("="), copy=False)
        return array.reshape(shape, order=order)

    return Entry(shape, dtype, load)


def _parse(head):
    """First bytes of an .npy file -> where the data begins, type, Fortran order, shape.

    The header is a Python dictionary in print. It is matched, not evaluated.
    """
    width = {1: 2, 2: 4}.get(head[6]) if head[:6] == NPY_MAGIC else None
    if width is None:
        raise ValueError("no .npy array of version 1 or 2")
    start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    fields = {
        key: values for key, *values in _FIELD.findall(head[8 + width : start].decode("latin1"))
    }
    shape = tuple(int(size) for size in re.findall(r"\d+", fields["shape"][2]))
    return start, fields["descr"][0], fields["fortran_order"][1], shape


def _item_type(name, stored_as) -> np.dtype:
    if stored_as in _BFLOAT16:
        return np.dtype("<u2")
    if not _PLAIN.fullmatch(stored_as):
        pickled = " (objects, that is, a pickle that could run code)" if "O" in stored_as else ""
        raise CheckpointError(
            f"array {name!r}: only arrays of numbers are read. "
            f"Received: dtype {stored_as!r}{pickled}"
        )
    with damage(f"array {name!r}, dtype", TypeError, ValueError):
        return np.dtype(stored_as)
