"""`keras-vit list`"""

from keras_vit.cli import terminal


def add_commands(commands):
    """Adds the command to the subparsers of the program."""
    parser = commands.add_parser("list", help="models and their published weights")
    parser.add_argument(
        "pattern",
        nargs="?",
        default="",
        metavar="PATTERN",
        help="a part of the name, or a pattern such as 'ViT_*16'",
    )
    parser.add_argument("--weights", action="store_true", help="one row a named set of weights")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_list)


def _list(args):
    terminal.start_keras()
    from keras_vit.registry import get_variant, list_models

    has_wildcard = any(c in args.pattern for c in "*?[")
    names = list_models(args.pattern if has_wildcard else f"*{args.pattern}*")
    if not names:
        raise ValueError(f"No model matches. Received: {args.pattern!r}. See `keras-vit list`.")
    describe = _sets if args.weights else _numbers
    rows = [row for name in names for row in describe(get_variant(name))]
    if args.json:
        terminal.write_json(rows)
    elif rows:
        header = [key.replace("_", " ") for key in rows[0]]
        terminal.write_table(header, [[_size(v) for v in row.values()] for row in rows])
    return 0


def _numbers(variant):
    config = variant.config
    yield {
        "model": variant.name,
        "parameters": variant.parameters,
        "patch": config.pixels,
        **{key: getattr(config, key, None) for key in ("width", "depth", "heads")},
        "image": variant.config.image,
        "default_weights": variant.default,
    }


def _sets(variant):
    for row in variant.weights:
        yield {
            "model": variant.name,
            "weights": row.name,
            "image": row.image,
            "classes": row.classes,
            "top1": row.top1,
            "licence": row.licence,
            "address": row.url,
        }


def _size(value):
    return f"{value[0]}x{value[1]}" if isinstance(value, tuple) else value
