"""`keras-vit export`"""

import pathlib

from keras_vit.cli import files, models, terminal


def add_commands(commands):
    """Adds the command to the subparsers of the program."""
    parser = commands.add_parser("export", help="write a model for servers and devices")
    parser.add_argument(
        "model_file", nargs="?", metavar="MODEL.keras", help="file to export; or --model"
    )
    parser.add_argument("--model", metavar="NAME", help="see `keras-vit list`; or a .keras file")
    parser.add_argument(
        "--weights",
        metavar="W",
        help="a named set, or a checkpoint file (default: the model's own)",
    )
    models.add_size_option(parser)
    parser.add_argument(
        "--format",
        choices=tuple(_FORMATS),
        default="savedmodel",
        help="savedmodel (default), onnx or litert",
    )
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="DIR",
        help="folder to write into; a SavedModel gets its next number there",
    )
    parser.add_argument(
        "--version",
        type=models.positive,
        metavar="N",
        help="number of the SavedModel (default: the next one)",
    )
    parser.add_argument(
        "--classes-file", metavar="FILE", help="text file with the name of one class a line"
    )
    parser.add_argument(
        "--precision",
        default="float32",
        choices=("float32", "float16", "dynamic-int8", "int8"),
        help="of a LiteRT file (default: float32)",
    )
    parser.add_argument(
        "--calibration", metavar="DIR", help="pictures to measure the ranges of --precision int8 on"
    )
    parser.add_argument("--xla", action="store_true", help="let XLA compile a SavedModel")
    parser.set_defaults(run=_export)


def _export(args):
    _check(args)
    terminal.start_keras()
    opened = _open(args)
    names = models.class_names(args, opened)
    try:
        with terminal.quiet():
            path, run, details = _FORMATS[args.format](args, opened.model, names)
    except ImportError as error:
        raise ValueError(str(error)) from error
    terminal.write(f"{path}: {opened.title}\n")
    for line in (*details, _size(path), _agreement(opened.model, run)):
        terminal.write(f"  {line}\n")
    return 0


def _check(args):
    """Raises ValueError for options that do not fit together."""
    if args.model_file is None and args.model and args.model.endswith(".keras"):
        args.model_file, args.model = args.model, None  # as the other commands take it
    if (args.model_file is None) == (args.model is None):
        raise ValueError("Name one model: MODEL.keras or --model NAME.")
    if args.model_file and (args.weights or args.image_size):
        raise ValueError(
            "A .keras file has its own weights and image size. "
            f"Received: {args.model_file} with --weights or --image-size."
        )
    if args.model_file and not args.model_file.endswith(".keras"):
        raise ValueError(
            f"The name of a model file must end with .keras. Received: '{args.model_file}'. "
            "`keras-vit convert` makes one of a checkpoint."
        )
    if args.format != "savedmodel" and (args.version or args.xla):
        raise ValueError("--version and --xla are for SavedModels.")
    if args.format != "litert" and (args.precision != "float32" or args.calibration):
        raise ValueError("--precision and --calibration are for LiteRT files.")


def _open(args):
    if args.model_file:
        return models.open_file(args.model_file)
    return models.build(args.model, args.weights, args.image_size)


def _saved_model(args, model, names):
    from keras_vit.export import saved_model
    from keras_vit.export.agreement import run_saved_model

    path = saved_model(model, args.output, names, args.version, jit_compile=args.xla)
    run = run_saved_model(path)
    return path, run, _signatures(path)


def _signatures(path):
    import tensorflow as tf

    for name, function in tf.saved_model.load(str(path)).signatures.items():
        (argument,) = function.structured_input_signature[1].values()
        outputs = sorted(function.structured_outputs)
        yield f"{name}: {argument.name} {argument.dtype.name} -> {', '.join(outputs)}"


def _onnx(args, model, names):
    from keras_vit.export import onnx
    from keras_vit.export.onnx_file import OPSET, run_onnx

    path = _file(args, model, ".onnx")
    onnx(model, path, names)
    return path, lambda images: run_onnx(path)(images), [f"opset {OPSET}, float32"]


def _litert(args, model, names):
    from keras_vit.export import litert
    from keras_vit.export.litert_file import run_litert

    path = _file(args, model, ".tflite")
    litert(model, path, args.precision, args.calibration)
    return path, lambda images: run_litert(path)(images), [f"{args.precision}, built-in operations"]


def _file(args, model, suffix):
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    return files.check_target(folder / f"{model.name}{suffix}", [suffix])


def _size(path):
    path = pathlib.Path(path)
    parts = path.rglob("*") if path.is_dir() else [path]
    return f"{sum(part.stat().st_size for part in parts if part.is_file()) / 1e6:.1f} MB"


def _agreement(model, run):
    from keras_vit.export.agreement import agreement

    try:
        with terminal.quiet():
            found = agreement(model, run)
    except ImportError as error:
        return f"not compared with Keras: {error}"
    same = "" if found.same is None else f", same class for {found.same}"
    return f"difference to Keras on {found.pictures} pictures: {found.difference:.1e}{same}"


_FORMATS = {"savedmodel": _saved_model, "onnx": _onnx, "litert": _litert}
