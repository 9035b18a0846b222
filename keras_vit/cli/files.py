"""Writing files whole or not at all."""

import contextlib
import os
import pathlib
import secrets
import shutil


def check_target(path, suffixes, force=True):
    """Refuses a path that could not be written, before any work is done for it.

    Args:
        path: of the file to write.
        suffixes: what its name may end with.
        force: whether a file that is there may be replaced.

    Returns:
        The path as a `pathlib.Path`.

    Raises:
        ValueError: another suffix, no such folder, or the file is there already.
    """
    path = pathlib.Path(path)
    if not path.name.endswith(tuple(suffixes)):
        raise ValueError(
            f"The name of the output must end with {' or '.join(suffixes)}. Received: '{path}'."
        )
    if not path.parent.is_dir():
        raise ValueError(f"There is no folder '{path.parent}' to write into. Make it first.")
    if path.exists() and not force:
        raise ValueError(f"The output exists already: '{path}'. Pass --force to replace it.")
    return path


@contextlib.contextmanager
def replacing(path):
    """Gives a temporary path beside `path`, with the same suffix, which replaces it in the end.

    Whatever goes wrong before that leaves `path`, a file or a folder, as it was.
    """
    path = pathlib.Path(path)
    partial = path.with_name(f".{secrets.token_hex(4)}-{path.name}")
    try:
        yield partial
        if path.is_dir():
            shutil.rmtree(path)
        os.replace(partial, path)
    finally:
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)
