"""safetensors files: eight bytes of header length, a JSON header, the arrays without gaps."""

import functools
import os
import re

from keras_vit.weights.readers.base import (
    STORED,
    CheckpointError,
    Entry,
    byte_count,
    damage,
    decode,
    located,
    parse_json,
    read_region,
)

_DTYPES = {
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    "BOOL": "bool",
}


def entries(file) -> tuple[dict[str, Entry], dict]:
    """Arrays and metadata of one open safetensors file."""
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    begin = 8 + length
    if begin > size:
        raise CheckpointError(
            f"safetensors: truncated or damaged, its header has a length of {length} bytes in a "
            f"file of {size}"
        )
    header = parse_json(file.read(length), "safetensors header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise CheckpointError("safetensors header: damaged, __metadata__ is no dictionary")
    spans = {name: _span(name, description) for name, description in header.items()}
    _check_layout(spans, size - begin)
    loaded = {}
    for name, (start, end, dtype, shape) in spans.items():
        load = functools.partial(_load, file, begin + start, end - start, dtype, shape)
        loaded[name] = Entry(shape, dtype, load)
    return loaded, metadata


def is_index(contents: dict) -> bool:
    """Whether a JSON object tells in which safetensors file of its folder each array lies."""
    weight_map = contents.get("weight_map")
    return isinstance(weight_map, dict) and all(
        isinstance(shard, str) and re.fullmatch(r"[^/\\]+\.safetensors", shard)
        for shard in weight_map.values()
    )


def sharded_entries(index, folder, stack) -> tuple[dict[str, Entry], dict]:
    """Arrays and metadata of all shards in a folder that an index names, each opened once."""
    weight_map = index["weight_map"]
    shards = dict.fromkeys(weight_map.values())
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise CheckpointError(f"shards are missing from {folder}: {', '.join(missing)}")
    for shard in shards:
        with located(shard):
            shards[shard], _ = entries(stack.enter_context(open(folder / shard, "rb")))
    lacking = [name for name, shard in weight_map.items() if name not in shards[shard]]
    if lacking:
        raise CheckpointError(f"arrays named in the index but not held by their shards: {lacking}")
    metadata = index.get("metadata")
    loaded = {name: shards[shard][name] for name, shard in weight_map.items()}
    return loaded, metadata if isinstance(metadata, dict) else {}


def _span(name, description):
    """Description of one array -> start and end of its bytes, dtype, shape."""
    with damage(f"array {name!r}, description", TypeError, KeyError, ValueError):
        dtype, shape = description["dtype"], tuple(description["shape"])
        start, end = description["data_offsets"]
        if dtype not in _DTYPES:
            raise CheckpointError(f"array {name!r}: dtype {dtype!r} is none of {list(_DTYPES)}")
    needed = byte_count(name, shape, STORED[_DTYPES[dtype]].itemsize)
    if type(start) is not int or type(end) is not int or end - start != needed:
        raise CheckpointError(
            f"array {name!r}: damaged, its offsets are {start} to {end}, its shape {shape} of "
            f"{dtype} needs {needed} bytes"
        )
    return start, end, _DTYPES[dtype], shape


def _check_layout(spans, size):
    """The arrays must fill the rest of the file, without overlap and without gap."""
    position = 0
    for start, end, name in sorted((start, end, name) for name, (start, end, *_) in spans.items()):
        if start != position:
            fault = "overlap" if start < position else "leave a gap"
            raise CheckpointError(
                f"array {name!r}: offsets {fault}; it begins at {start}, the one before it ends at "
                f"{position}"
            )
        position = end
    if position != size:
        raise CheckpointError(
            f"safetensors: the arrays end at offset {position}, the file at {size}; "
            "truncated or damaged"
        )


def _load(file, start, size, dtype, shape):
    return decode(read_region(file, start, size), dtype).reshape(shape)
