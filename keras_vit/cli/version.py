"""`keras-vit --version`"""

import importlib.metadata
import json
import os
import pathlib

import keras_vit


def versions():
    """The versions of the package, of Keras and of its backend, found without loading them."""
    backend = _backend()
    return (
        f"keras-vit-zoo {keras_vit.__version__}, Keras {_version('keras')}, "
        f"backend {backend} {_version(backend)}"
    )


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(not found)"


def _backend():
    """The backend that Keras is going to take."""
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        configured = json.loads(pathlib.Path(home, "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError):
        configured = "tensorflow"
    return os.environ.get("KERAS_BACKEND") or configured
