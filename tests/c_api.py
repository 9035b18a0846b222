"""Runs a SavedModel through TensorFlow's C API, without TensorFlow's Python: what a C++ server does.

    python tests/c_api.py SAVED_MODEL SIGNATURES.json INPUTS.npz OUTPUTS.npz

SIGNATURES.json maps each signature to its inputs and outputs, name -> [graph tensor, dtype]. An input
of the key "serving_default/images" is in INPUTS.npz under that name; strings are arrays of bytes.
"""

import ctypes
import importlib.metadata
import json
import sys

import numpy as np

_DTYPES = {"float32": 1, "int32": 3, "uint8": 4, "string": 7}
_STRING_SIZE = 24  # of TF_TString


class _Output(ctypes.Structure):
    _fields_ = [("operation", ctypes.c_void_p), ("index", ctypes.c_int)]


class _Buffer(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("free", ctypes.c_void_p)]


def _load():
    """The library of the installed wheel."""
    files = importlib.metadata.files("tensorflow") or importlib.metadata.files("tensorflow-cpu")
    paths = {file.name: str(file.locate()) for file in files}
    ctypes.CDLL(paths["libtensorflow_framework.so.2"], ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(paths["libtensorflow_cc.so.2"], ctypes.RTLD_GLOBAL)
    pointers = (
        "TF_NewStatus TF_Message TF_NewGraph TF_NewSessionOptions TF_LoadSessionFromSavedModel "
        "TF_GraphOperationByName TF_AllocateTensor TF_TensorData TF_StringGetDataPointer"
    )
    for name in pointers.split():
        getattr(library, name).restype = ctypes.c_void_p
    library.TF_Message.restype = ctypes.c_char_p
    library.TF_Dim.restype = ctypes.c_int64
    library.TF_StringGetSize.restype = ctypes.c_size_t
    return library


class Session:
    """A SavedModel, loaded."""

    def __init__(self, path):
        self.library = _load()
        self.status = ctypes.c_void_p(self.library.TF_NewStatus())
        self.graph = ctypes.c_void_p(self.library.TF_NewGraph())
        tags = (ctypes.c_char_p * 1)(b"serve")
        self.session = ctypes.c_void_p(
            self.library.TF_LoadSessionFromSavedModel(
                ctypes.c_void_p(self.library.TF_NewSessionOptions()),
                None,
                path.encode(),
                tags,
                1,
                self.graph,
                None,
                self.status,
            )
        )
        self._check()

    def run(self, inputs, outputs):
        """Arrays of the graph tensors `outputs` for a dict of graph tensor -> array."""
        values = (ctypes.c_void_p * len(inputs))(*(self._tensor(a) for a in inputs.values()))
        results = (ctypes.c_void_p * len(outputs))()
        self.library.TF_SessionRun(
            self.session,
            None,
            self._outputs(inputs),
            values,
            len(inputs),
            self._outputs(outputs),
            results,
            len(outputs),
            None,
            0,
            None,
            self.status,
        )
        self._check()
        return [self._array(ctypes.c_void_p(result)) for result in results]

    def _check(self):
        if self.library.TF_GetCode(self.status):
            sys.exit(self.library.TF_Message(self.status).decode())

    def _outputs(self, names):
        result = (_Output * len(names))()
        for k, name in enumerate(names):
            operation, index = name.rsplit(":", 1)
            found = self.library.TF_GraphOperationByName(self.graph, operation.encode())
            result[k] = _Output(found, int(index))
        return result

    def _tensor(self, array):
        is_string = array.dtype == object
        dtype = _DTYPES["string" if is_string else array.dtype.name]
        size = array.size * _STRING_SIZE if is_string else array.nbytes
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        tensor = self.library.TF_AllocateTensor(dtype, shape, array.ndim, ctypes.c_size_t(size))
        data = self.library.TF_TensorData(ctypes.c_void_p(tensor))
        if not is_string:
            ctypes.memmove(data, np.ascontiguousarray(array).ctypes.data, size)
            return tensor
        for k, value in enumerate(array):
            place = ctypes.c_void_p(data + k * _STRING_SIZE)
            self.library.TF_StringInit(place)
            self.library.TF_StringCopy(place, value, ctypes.c_size_t(len(value)))
        return tensor

    def _array(self, tensor):
        ndim = self.library.TF_NumDims(tensor)
        shape = [self.library.TF_Dim(tensor, k) for k in range(ndim)]
        data = self.library.TF_TensorData(tensor)
        kind = next(n for n, k in _DTYPES.items() if k == self.library.TF_TensorType(tensor))
        count = int(np.prod(shape))
        if kind != "string":
            size = count * np.dtype(kind).itemsize
            return np.frombuffer(ctypes.string_at(data, size) if size else b"", kind).reshape(shape)
        places = [ctypes.c_void_p(data + k * _STRING_SIZE) for k in range(count)]
        texts = [
            ctypes.string_at(
                self.library.TF_StringGetDataPointer(place), self.library.TF_StringGetSize(place)
            )
            for place in places
        ]
        return np.array(texts, dtype=bytes).reshape(shape)


def main(path, signatures, inputs, outputs):
    session, results = Session(path), {}
    with open(signatures) as file:
        signatures = json.load(file)
    arrays = np.load(inputs, allow_pickle=True)
    for name, (takes, gives) in signatures.items():
        values = {tensor: arrays[f"{name}/{key}"] for key, tensor in takes.items()}
        found = session.run(values, list(gives.values()))
        results |= {f"{name}/{key}": array for key, array in zip(gives, found, strict=True)}
    np.savez(outputs, **results)
    if "tensorflow" in sys.modules:
        sys.exit("TensorFlow's Python was imported.")


if __name__ == "__main__":
    main(*sys.argv[1:])
