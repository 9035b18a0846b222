"""Files that a command writes."""

import pathlib

from keras_vit.files import replacing as replacing


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
