"""Options that choose a model, and the model they stand for."""

import argparse
import contextlib
import dataclasses
import pathlib
import re
import sys

from keras_vit.cli import terminal

CPU_INFO = pathlib.Path("/proc/cpuinfo")


@dataclasses.dataclass(frozen=True)
class Opened:
    """A model that is ready for pictures.

    Attributes:
        model: the Keras model.
        title: what it is, for people.
        labels: class names of its weights; None if they are ImageNet's or unknown.
    """

    model: object
    title: str
    labels: tuple | None = None


def positive(text):
    """A positive integer, for argparse."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a positive whole number is expected, not {text!r}")
    return int(text)


def image_size(text):
    """A size such as "224" or "224x320" as (height, width), for argparse."""
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected 224 or 224x320 (height x width), not {text!r}")
    return int(match[1]), int(match[2] or match[1])


def add_size_option(parser):
    """Adds `--image-size`."""
    parser.add_argument(
        "--image-size",
        type=image_size,
        metavar="N",
        help="pixels, N or HxW; by default the size of the weights",
    )


def add_options(parser, precision):
    """Adds the options of `open_model`; `precision` is the default of `--precision`."""
    parser.add_argument(
        "--model",
        default="ViT_B16",
        metavar="NAME",
        help="see `keras-vit list`; or a .keras file (default: ViT_B16)",
    )
    parser.add_argument(
        "--weights",
        metavar="W",
        help="a named set, or a checkpoint file (default: the model's own)",
    )
    add_size_option(parser)
    parser.add_argument(
        "--precision",
        choices=("auto", "float32", "bfloat16"),
        default=precision,
        help=f"auto is bfloat16 where the machine is faster at it (default: {precision})",
    )


def add_batch_option(parser):
    """Adds `--batch-size`."""
    parser.add_argument(
        "--batch-size", type=positive, default=8, metavar="N", help="pictures at once (default: 8)"
    )


def add_naming_options(parser):
    """Adds `--top` and the option of `class_names`."""
    parser.add_argument(
        "--top",
        type=positive,
        default=5,
        metavar="K",
        help="classes to name a picture (default: 5)",
    )
    parser.add_argument(
        "--classes-file", metavar="FILE", help="text file with the name of one class a line"
    )


def open_model(args, include_top=True, pooling=None):
    """The model that the options of `add_options` stand for.

    Args:
        args: the parsed options.
        include_top: with the head, or the features before it.
        pooling: of the features; None for the class token, or the average where there is none.

    Returns:
        An `Opened`.

    Raises:
        ValueError: options that do not fit together, no such model, or weights that do not fit it.
        FetchError: the weights cannot be had.
    """
    if args.model.endswith(".keras"):
        return _open_file(args, include_top, pooling)
    precision = args.precision if args.precision != "auto" else _fast_precision()
    dtype = "mixed_bfloat16" if precision == "bfloat16" else "float32"
    options = {} if include_top else {"pooling": pooling or _pooling(args.model)}
    opened = build(args.model, args.weights, args.image_size, include_top, dtype=dtype, **options)
    return dataclasses.replace(opened, title=f"{opened.title}, {precision}")


def class_names(args, opened):
    """Names of the classes of an `Opened` in label order; None for those of ImageNet.

    Raises:
        ValueError: the file of `--classes-file` has another number of lines than the model classes.
    """
    classes = opened.model.output_shape[-1]
    if args.classes_file:
        names = pathlib.Path(args.classes_file).read_text(encoding="utf-8").rstrip().splitlines()
        if len(names) != classes:
            raise ValueError(
                f"The file of class names must have one line a class. Received: {len(names)} "
                f"lines in {args.classes_file} for the {classes} classes of {opened.title}."
            )
        return names
    if opened.labels:
        return opened.labels
    return None if classes in (1000, 21843) else [f"class {k}" for k in range(classes)]


def has_head(model):
    """Whether a model ends in a dense layer, and so names classes."""
    import keras

    while isinstance(model.layers[-1], keras.Model):
        model = model.layers[-1]
    return _before_head(model) is not model


def class_probabilities(model, scores):
    """Probabilities of the scores (N, classes) of a model; of a head without activation too."""
    from keras_vit.training.evaluation import last_activation, probabilities

    activation = last_activation(model)
    return probabilities(scores, activation) if activation == "linear" else scores


def build(name, weights=None, size=None, include_top=True, classes=None, dtype=None, **options):
    """Builds a model of the package from its own or given weights.

    Args:
        name: of the model.
        weights: a named set or a file; None for the model's default.
        size: (height, width); None for that of the weights.
        include_top: with or without a head.
        classes: of the head; None for as many as the weights have. Any other number than that makes
            a new head, zero-initialised.
        dtype: of the model.
        **options: further arguments of the model.

    Returns:
        An `Opened`.

    Raises:
        ValueError: no such model, or weights that do not fit.
        FetchError: the weights cannot be had.
    """
    from keras_vit.models.fitting import open_weights
    from keras_vit.registry import get_variant
    from keras_vit.weights.fetch import FetchError

    variant = get_variant(name)
    weights = weights or variant.default
    if weights is None:
        raise ValueError(f"{variant.name} has no published weights. Give a file by --weights.")
    try:
        # A download shows its progress on stdout.
        with contextlib.redirect_stdout(sys.stderr), terminal.remarks():
            row, source = open_weights(variant, weights, include_top)
            if include_top:
                options |= _head(source, variant, size, classes)
            model = variant.function(
                include_top=include_top,
                weights=weights,
                dtype=dtype,
                input_shape=size and (*size, 3),
                **options,
            )
    except FetchError as error:
        hint = "" if variant.name == "ViT_Mini4" else " `--model ViT_Mini4` needs no network."
        raise FetchError(f"{error}{hint}") from error
    return Opened(model, f"{variant.name}, weights {weights}", row and row.labels)


def _pooling(name):
    """Pooling that gives the features of a picture: the class token where a model has one."""
    from keras_vit.registry import get_variant

    return "token" if getattr(get_variant(name).config, "tokens", ()) else "avg"


def _head(source, variant, size, classes):
    """The model's arguments `classes` and `pretrained_top`."""
    grid = size and tuple(side // variant.config.pixels for side in size)
    found = source.format.structure(source, grid)["classes"]
    if not found and classes is None:
        raise ValueError(
            f"These weights have no classification head: {source.checkpoint.path}. "
            "`keras-vit embed` gives their features, `convert --no-top` a model without a head."
        )
    return {"classes": classes or found, "pretrained_top": classes in (None, found)}


def _open_file(args, include_top, pooling):
    if args.weights or args.image_size or pooling or args.precision == "bfloat16":
        raise ValueError(
            "A .keras file has its own weights, image size, pooling and precision. Received: --model "
            f"{args.model} with one of --weights, --image-size, --pooling, --precision bfloat16."
        )
    opened = open_file(args.model)
    if include_top:
        return opened
    return dataclasses.replace(opened, model=_before_head(opened.model))


def open_file(path):
    """The model of a .keras file, as an `Opened`.

    Raises:
        ValueError: it cannot be loaded.
    """
    import keras

    from keras_vit import preprocessing

    try:
        model = keras.models.load_model(path, compile=False)
    except (TypeError, KeyError) as error:
        raise ValueError(f"Cannot load {path}: {error}") from error
    labels = preprocessing.class_names_beside(path)
    if labels and len(labels) != model.output_shape[-1]:
        raise ValueError(
            f"The classes.json beside {path} is of another model. Received: {len(labels)} "
            f"names for {model.output_shape[-1]} classes."
        )
    return Opened(model, path, labels)


def label_names(opened):
    """Names by which pictures are labelled: those of the weights, or WordNet's; None if unknown."""
    from keras_vit import preprocessing

    if opened.labels:
        return opened.labels
    if opened.model.output_shape[-1] == 1000:
        return tuple(identifier for identifier, _ in preprocessing.class_names("imagenet"))
    return None


def _before_head(model):
    """The model up to what its head reads; the model itself if it has no head."""
    import keras

    for layer in model.layers[-2:]:  # the head, and perhaps its activation
        if isinstance(layer, keras.layers.Dense):
            return keras.Model(model.inputs, layer.input, name=model.name)
    return model


def _fast_precision():
    """Half precision on accelerators, and where TensorFlow finds CPU instructions for it."""
    import keras

    from keras_vit.devices import has_accelerator

    if has_accelerator():
        return "bfloat16"
    found = CPU_INFO.exists() and {"avx512_bf16", "amx_bf16"} & set(CPU_INFO.read_text().split())
    return "bfloat16" if found and keras.config.backend() == "tensorflow" else "float32"
