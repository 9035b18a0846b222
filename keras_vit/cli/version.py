"""`keras-vit --version`"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import pathlib

import keras_vit
from keras_vit.cli import terminal


class ShowVersions(argparse.Action):
    """Prints the versions of the package, Keras and its backend, without loading any of them."""

    def __init__(self, option_strings, dest):
        super().__init__(option_strings, dest, nargs=0, help="print versions and leave")

    def __call__(self, parser, *_):
        backend = _backend()
        terminal.write(
            f"keras-vit-zoo {keras_vit.__version__}\n"
            f"Keras {_version('keras')}\n"
            f"{backend} {_version(backend)} (backend)\n"
        )
        parser.exit()


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # or installed under another name
        return "of unknown version" if importlib.util.find_spec(package) else "is not installed"


def _backend():
    """The backend that Keras is going to take."""
    if os.environ.get("KERAS_BACKEND"):
        return os.environ["KERAS_BACKEND"]
    home = os.environ.get("KERAS_HOME") or os.path.join(os.path.expanduser("~"), ".keras")
    try:
        return json.loads(pathlib.Path(home, "keras.json").read_text())["backend"]
    except (OSError, ValueError, KeyError):
        return "tensorflow"
