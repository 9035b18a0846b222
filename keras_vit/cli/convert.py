"""`keras-vit convert`"""

from keras_vit.cli import files, models, terminal


def add_commands(commands):
    """Adds the command to the subparsers of the program."""
    parser = commands.add_parser("convert", help="turn a published checkpoint into a Keras file")
    parser.add_argument(
        "input", metavar="IN", help="checkpoint of any known format, or a named set"
    )
    parser.add_argument("output", metavar="OUT", help="file to write, .keras or .weights.h5")
    parser.add_argument("--model", required=True, metavar="NAME", help="see `keras-vit list`")
    parser.add_argument(
        "--classes",
        type=models.positive,
        metavar="N",
        help="if the head of IN has another number of classes, make a new one, zero-initialised",
    )
    models.add_size_option(parser)
    parser.add_argument("--no-top", action="store_true", help="leave the head out")
    parser.add_argument("--force", action="store_true", help="replace OUT if it exists")
    parser.set_defaults(run=_convert)


def _convert(args):
    target = files.check_target(args.output, [".keras", ".weights.h5"], args.force)
    terminal.start_keras()
    if args.no_top and args.classes:
        raise ValueError("Without a head there are no classes: pass --no-top or --classes.")
    opened = models.build(args.model, args.input, args.image_size, not args.no_top, args.classes)
    model = opened.model
    with files.replacing(target) as partial:
        if target.suffix == ".keras":
            model.save(partial)
        else:
            model.save_weights(partial)
    terminal.write(
        f"{target}: {opened.title}; {model.count_params():,} parameters, images "
        f"{model.input_shape[1:]}, output {model.output_shape[1:]}\n"
    )
    return 0
