"""Results to stdout; progress, remarks and errors to stderr."""

import contextlib
import json
import logging
import os
import sys


def debugging():
    """Whether `KERAS_VIT_DEBUG` asks for tracebacks and the messages of the libraries."""
    return os.environ.get("KERAS_VIT_DEBUG", "0") not in ("", "0")


def say(text):
    """One remark on stderr."""
    print(f"keras-vit: {text}", file=sys.stderr)


@contextlib.contextmanager
def remarks():
    """Shows what the package logs, such as what was loaded from a file, on stderr."""
    logger, handler = logging.getLogger("keras_vit"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("keras-vit: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def write(text):
    """Text to stdout; a reader that has gone (`| head`) is no error."""
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(line):
    """One line of text to stdout."""
    write(line + "\n")


def write_json(value):
    """A value as JSON to stdout."""
    write(json.dumps(value, indent=2) + "\n")


def write_table(header, rows):
    """A table to stdout: framed and folded to the width of a terminal, else one full line a row.

    Args:
        header: column names.
        rows: for each row the cells; None is shown as "-".
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console.width = 100_000  # nothing is ever folded
    table = Table(
        box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    for k, name in enumerate(header):
        number = any(isinstance(row[k], int | float) for row in rows)
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    with console.capture() as captured:
        console.print(table)
    write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def _cell(value):
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@contextlib.contextmanager
def progress_bar(title, total):
    """Shows a bar if stderr is a terminal; gives the function that advances it by one step."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


def start_keras():
    """Loads Keras, its backend and all models, without TensorFlow's start-up messages.

    Raises:
        ValueError: the backend is not installed.
    """
    try:
        with quiet():
            from keras_vit import list_models as _  # noqa: F401
        logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of every new batch size
    except ModuleNotFoundError as error:
        raise ValueError(
            f"Keras cannot load its backend: {error}. Install one, such as "
            '`pip install "keras-vit-zoo[tensorflow]"`, or choose another by KERAS_BACKEND.'
        ) from error


@contextlib.contextmanager
def quiet():
    """Drops what TensorFlow writes to stderr, unless `KERAS_VIT_DEBUG` is set.

    Some of it goes to the file descriptor, before TF_CPP_MIN_LOG_LEVEL is read.
    """
    if debugging():
        yield
        return
    sys.stderr.flush()
    descriptor = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(descriptor, 2)
        os.close(descriptor)
