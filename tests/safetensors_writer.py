"""Writer of safetensors files, for tests."""

import json
import pathlib
import struct

import numpy as np


def write_safetensors(path, arrays):
    """Writes float32 arrays as a safetensors file."""
    header, data, offset = {}, [], 0
    for name, value in arrays.items():
        raw = np.ascontiguousarray(value, dtype="<f4").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(np.shape(value)),
            "data_offsets": [offset, offset + len(raw)],
        }
        data.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    return path
