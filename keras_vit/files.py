"""Writing files whole or not at all."""

import contextlib
import json
import os
import pathlib
import secrets
import shutil


@contextlib.contextmanager
def replacing(path):
    """Gives a temporary path beside `path`, with the same suffix, which replaces it in the end.

    Whatever goes wrong before that leaves `path`, a file or a folder, as it was.
    """
    path = pathlib.Path(path)
    with temporary(path) as partial:
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(partial, path)


@contextlib.contextmanager
def temporary(path):
    """Gives an unused hidden path beside `path`, with the same suffix; what is there in the end is removed."""
    partial = path.with_name(f".{secrets.token_hex(4)}-{path.name}")  # as in `remove_leftovers`
    try:
        yield partial
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def remove_leftovers(folder):
    """Removes the files that `temporary` made in a folder and a killed process left there."""
    for path in pathlib.Path(folder).glob("." + 8 * "[0-9a-f]" + "-*"):
        path.unlink()


def write_json(path, value):
    """Writes a value as JSON, whole or not at all."""
    with replacing(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
