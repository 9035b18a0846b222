"""The program `keras-vit`.

Results go to stdout, everything else to stderr. Exit codes: 0, 1 if some of the work failed, 2 for
an error, 130 after Ctrl-C. `KERAS_VIT_DEBUG=1` shows where an error comes from.
"""

import argparse
import os

from keras_vit.cli import (
    convert,
    demo,
    explain,
    export,
    finetune,
    listing,
    predict,
    terminal,
    version,
)


def main(argv=None) -> int:
    """Runs the program.

    Args:
        argv: arguments after the program's name; None takes those of the process.

    Returns:
        The exit code.

    Raises:
        SystemExit: after `--help`, `--version` or wrong usage, as argparse does.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except KeyboardInterrupt:
        terminal.say("interrupted")
        return 130
    except (ValueError, OSError) as error:
        if terminal.debugging():
            raise
        terminal.say(f"error: {error}")
        return 2


def _parser():
    parser = argparse.ArgumentParser(
        prog="keras-vit",
        description="Vision Transformers for Keras 3, with the published weights.",
        epilog="Start with `keras-vit demo`: it needs neither network nor pictures.",
    )
    parser.add_argument("--version", action="version", version=version.versions())
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (listing, predict, explain, finetune, convert, export, demo):
        module.add_commands(commands)
    return parser
