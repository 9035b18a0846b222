"""`keras-vit classify` and `keras-vit embed`"""

from keras_vit.cli import files, models, pictures, terminal


def add_commands(commands):
    """Adds the commands to the subparsers of the program."""
    classify = commands.add_parser("classify", help="name what is in pictures")
    _add_images(classify)
    models.add_options(classify, precision="auto")
    models.add_batch_option(classify)
    models.add_naming_options(classify)
    classify.add_argument("--json", action="store_true", help="print JSON")
    classify.set_defaults(run=_classify)

    embed = commands.add_parser("embed", help="write the features of pictures to a file")
    _add_images(embed)
    embed.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="OUT.npz",
        help="arrays `paths` (N,) and `features` (N, D)",
    )
    models.add_options(embed, precision="float32")
    models.add_batch_option(embed)
    embed.add_argument(
        "--pooling",
        choices=("token", "avg", "map"),
        help="what a feature is: the class token, the mean of the patches, or "
        "attention pooling (default: token)",
    )
    embed.set_defaults(run=_embed)


def _add_images(parser):
    parser.add_argument(
        "images",
        nargs="+",
        metavar="IMAGE",
        help="image file, folder, or pattern such as 'photos/**/*.jpg'",
    )


def _classify(args):
    terminal.start_keras()
    from keras_vit.preprocessing import decode_predictions

    paths = pictures.find(args.images)
    opened = models.open_model(args)
    if not models.has_head(opened.model):
        raise ValueError(
            f"{opened.title} has no classification head. `keras-vit embed` writes its features."
        )
    names = models.class_names(args, opened)
    results, failures = [], []
    for path, scores in pictures.outputs(opened, paths, args.batch_size, failures):
        scores = models.class_probabilities(opened.model, scores[None])
        results.append((path, decode_predictions(scores, args.top, names)[0]))
    if args.json:
        terminal.write_json(
            {
                "model": opened.title,
                "results": [
                    {
                        "path": str(path),
                        "predictions": [{"id": i, "name": n, "score": s} for i, n, s in best],
                    }
                    for path, best in results
                ],
                "failures": [{"path": str(path), "error": error} for path, error in failures],
            }
        )
    elif results:
        terminal.write_table(
            ("image", "score", "class"),
            [
                (path, f"{score:.4f}", name if identifier == name else f"{name} ({identifier})")
                for path, best in results
                for identifier, name, score in best
            ],
        )
    return 1 if failures else 0


def _embed(args):
    import numpy as np

    target = files.check_target(args.output, [".npz"])
    terminal.start_keras()
    paths = pictures.find(args.images)
    opened = models.open_model(args, include_top=False, pooling=args.pooling)
    failures = []
    rows = list(pictures.outputs(opened, paths, args.batch_size, failures))
    if rows:
        names, features = zip(*rows, strict=True)
        with files.replacing(target) as partial:
            np.savez(partial, paths=[str(name) for name in names], features=np.stack(features))
        terminal.write(f"{target}: {len(rows)} features of width {len(features[0])}\n")
    return 1 if failures else 0
