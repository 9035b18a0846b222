"""`keras-vit explain`"""

import pathlib

from keras_vit.cli import files, models, terminal


def add_commands(commands):
    """Adds the command to the subparsers of the program."""
    parser = commands.add_parser("explain", help="show what a model attends to in a picture")
    parser.add_argument("image", metavar="IMAGE", help="image file")
    parser.add_argument(
        "-o",
        "--output",
        default="report.html",
        metavar="OUT.html",
        help="page to write, which holds all it shows (default: report.html)",
    )
    models.add_options(parser, precision="float32")
    models.add_naming_options(parser)
    parser.set_defaults(run=_explain)


def _explain(args):
    target = files.check_target(args.output, [".html"])
    terminal.start_keras()
    from keras_vit.analysis import html_report
    from keras_vit.images import load_image
    from keras_vit.preprocessing import prepare, recipe_of

    picture = load_image(args.image)
    opened = models.open_model(args)
    image = prepare(picture, recipe_of(opened.model))
    predictions = _predictions(args, opened, image)
    with terminal.quiet():  # XLA names the processor
        page = html_report(
            opened.model,
            image,
            title=opened.title,
            about=pathlib.Path(args.image).name,
            predictions=predictions,
        )
    with files.replacing(target) as partial:
        partial.write_text(page, encoding="utf-8")
    terminal.write(f"{target}: {opened.title}; {target.stat().st_size / 1000:,.0f} KB\n")
    for name, score in predictions:
        terminal.write(f"   {score:.4f}  {name}\n")
    return 0


def _predictions(args, opened, image):
    """Pairs of a name and a score, the best first; none of a model without classes."""
    from keras_vit.preprocessing import decode_predictions

    if not models.has_head(opened.model):
        return []
    scores = opened.model.predict_on_batch(image[None].astype("float32"))
    scores = models.class_probabilities(opened.model, scores)
    names = models.class_names(args, opened)
    return [(name, score) for _, name, score in decode_predictions(scores, args.top, names)[0]]
