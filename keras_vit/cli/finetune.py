"""`keras-vit finetune` and `keras-vit evaluate`"""

import contextlib
import os
import pathlib
import sys

from keras_vit.cli import files, models, terminal


def add_commands(commands):
    """Adds the commands to the subparsers of the program."""
    _add_finetune(commands)
    _add_evaluate(commands)


def _add_data(parser):
    parser.add_argument(
        "--data",
        metavar="DATA",
        help="folder with one sub-folder a class, CSV file of paths and labels, or "
        "tfds:NAME[:SPLIT]",
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="leave out pictures that cannot be read"
    )


def _add_finetune(commands):
    parser = commands.add_parser(
        "finetune",
        help="train a model on labelled pictures",
        description="Trains on labelled pictures, validates after every epoch, keeps the best model. "
        "Everything is written to the folder of the run.",
    )
    _add_data(parser)
    add = parser.add_argument
    add("--out", required=True, metavar="DIR", help="folder of the run, such as runs/flowers")
    add(
        "--resume",
        action="store_true",
        help="go on with the run in --out after its last whole epoch, with its own options",
    )
    add(
        "--validation",
        metavar="DATA",
        help="pictures to validate on; by default the part of --data of that name, or a tenth",
    )
    add(
        "--model", default="ViT_B16", metavar="NAME", help="see `keras-vit list` (default: ViT_B16)"
    )
    add(
        "--weights",
        metavar="W",
        help="a named set, a file such as the best.keras of another run, or none (default: the "
        "model's own)",
    )
    add(
        "--recipe",
        default="vit-finetune",
        metavar="R",
        help="vit-finetune, augreg-scratch, deit-scratch, deepvit-scratch, linear-probe, few-shot, "
        "or knn (default: vit-finetune)",
    )
    models.add_size_option(parser)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--epochs", type=models.positive, metavar="N", help="passes over the pictures"
    )
    length.add_argument("--steps", type=models.positive, metavar="N", help="instead of epochs")
    add("--batch-size", type=models.positive, default=32, metavar="N", help="(default: 32)")
    add(
        "--accumulation",
        type=models.positive,
        default=1,
        metavar="N",
        help="batches whose gradients are averaged before the weights move (default: 1)",
    )
    add("--learning-rate", type=float, metavar="X", help="peak (default: the recipe's)")
    add(
        "--layer-decay",
        type=float,
        metavar="X",
        help="factor on the learning rate from a block to the one before it",
    )
    add("--freeze", type=int, metavar="N", help="do not train the embedding and the first N blocks")
    add(
        "--lora",
        type=models.positive,
        metavar="RANK",
        help="train low-rank updates of query and value, and the head",
    )
    add("--shots", type=models.positive, metavar="K", help="train on K pictures of each class")
    add(
        "--precision",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="auto is bfloat16 on GPU and TPU, else float32 (default: auto)",
    )
    add(
        "--xla",
        choices=("auto", "on", "off"),
        default="auto",
        help="compile the training step; auto is on for GPU and TPU (default: auto); TensorFlow "
        "cannot on several devices",
    )
    add("--gradient-checkpointing", action="store_true", help="less memory, a third more time")
    add(
        "--distribute",
        choices=("none", "data", "model"),
        default="none",
        help="data divides every batch among all devices: those of this machine, or with "
        "KERAS_BACKEND=jax and the next three options those of several; model divides every "
        "block among those of this machine, with KERAS_BACKEND=jax (default: none)",
    )
    add("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    add("--processes", type=models.positive, default=1, metavar="N", help="how many (default: 1)")
    add("--process-id", type=int, default=0, metavar="I", help="of this process, from 0")
    add("--seed", type=int, default=0, metavar="N", help="of everything random (default: 0)")
    parser.set_defaults(run=_finetune, defaults=parser.get_default)


_WITH_RESUME = {"out", "resume", "distribute", "coordinator", "processes", "process_id"}


def _refuse_other_options(args):
    """A resumed run has its own settings, which options would seem to change."""
    given = [
        f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
        for name, value in vars(args).items()
        if name not in {*_WITH_RESUME, "run", "defaults"} and value != args.defaults(name)
    ]
    if given:
        raise ValueError(
            f"A run is resumed with its own settings. Received: {', '.join(given)}. "
            "Leave that out, or start another run."
        )


def _finetune(args):
    if args.resume and not args.data:
        _refuse_other_options(args)
    terminal.start_keras()
    from keras_vit import distribution
    from keras_vit.training.fine_tuning import finetune

    if args.processes > 1:
        if not args.coordinator or args.distribute != "data":
            raise ValueError(
                "Several processes need --coordinator HOST:PORT and --distribute data. "
                f"Received: --processes {args.processes}."
            )
        distribution.start(args.coordinator, args.process_id, args.processes)
    verbose = 1 if sys.stdout.isatty() else 2
    with _one_of(args.processes, args.process_id):
        settings = None if args.resume and not args.data else _settings(args)
        finetune(settings, args.out, args.resume, terminal.tell, verbose)
    out = pathlib.Path(args.out)
    if (out / "best.keras").exists():
        terminal.tell(f"Try next: keras-vit classify YOUR_PHOTO.jpg --model {out / 'best.keras'}")
    return 0


@contextlib.contextmanager
def _one_of(processes, index):
    """An error in one of several processes ends it at once; leaving as usual would wait for the others."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if processes == 1 or terminal.debugging():
            raise
        stopped = isinstance(error, KeyboardInterrupt)
        terminal.say("interrupted" if stopped else f"error: {error}")
        terminal.say(
            f"This was process {index} of {processes}. If another one ended or cannot be reached, "
            "start all of them again with --resume."
        )
        sys.stdout.flush()
        os._exit(2)


def _settings(args):
    from keras_vit.devices import has_accelerator
    from keras_vit.registry import get_variant
    from keras_vit.training.settings import Settings

    if not args.data:
        raise ValueError("Say which pictures to train on: --data.")
    weights = args.weights
    if weights is None:
        weights = None if args.recipe.endswith("-scratch") else get_variant(args.model).default
        if weights is None and not args.recipe.endswith("-scratch"):
            raise ValueError(
                f"{args.model} has no published weights to fine-tune. Give a file by --weights, or "
                "train from scratch by --weights none and a recipe such as augreg-scratch."
            )
    elif weights == "none":
        weights = None
    with terminal.quiet():
        accelerated = has_accelerator()
    precision = args.precision
    if precision == "auto":
        precision = "bfloat16" if accelerated else "float32"
    return Settings(
        data=args.data,
        model=get_variant(args.model).name,
        recipe=args.recipe,
        weights=weights,
        validation=args.validation,
        image_size=args.image_size,
        epochs=args.epochs,
        steps=args.steps,
        batch_size=args.batch_size,
        accumulation=args.accumulation,
        learning_rate=args.learning_rate,
        layer_decay=args.layer_decay,
        frozen_blocks=args.freeze,
        lora_rank=args.lora,
        shots=args.shots,
        precision=precision,
        xla=accelerated if args.xla == "auto" else args.xla == "on",
        seed=args.seed,
        skip_bad=args.skip_bad,
        gradient_checkpointing=args.gradient_checkpointing,
        distribute=args.distribute,
    )


def _add_evaluate(commands):
    parser = commands.add_parser(
        "evaluate",
        help="measure a classifier on labelled pictures",
        description="Accuracy, loss, calibration and accuracy per class. --data may be the ImageNet "
        "validation folder or tfds:imagenet2012:validation.",
    )
    _add_data(parser)
    models.add_options(parser, precision="float32")
    models.add_batch_option(parser)
    parser.add_argument("--split", metavar="NAME", help="which part of --data")
    parser.add_argument("--real", metavar="FILE", help="real.json, the ReaL labels of ImageNet")
    parser.add_argument("--json", metavar="FILE", help="write the numbers to a file, or to - ")
    parser.set_defaults(run=_evaluate)


def _evaluate(args):
    terminal.start_keras()
    from keras_vit.files import write_json
    from keras_vit.preprocessing import recipe_of
    from keras_vit.training.evaluation import evaluate, real_accuracy, real_labels
    from keras_vit.training.opening import open_samples
    from keras_vit.training.pipeline import evaluation_dataset
    from keras_vit.training.samples import check_samples

    if not args.data:
        raise ValueError("Say which pictures to evaluate on: --data.")
    target = None
    if args.json and args.json != "-":
        target = files.check_target(args.json, [".json"])
    opened = models.open_model(args)
    names = models.label_names(opened)
    samples = open_samples(args.data, args.split, names)
    for path, reason in samples.skipped:
        terminal.say(f"left out, {reason}: {path}")
    with terminal.progress_bar("reading", len(samples)) as advance:
        check = check_samples(samples, args.skip_bad, advance=advance)
    for text in check.bad:
        terminal.say(f"left out, {': '.join(text)}")
    samples = check.samples
    right = real_labels(samples.names, args.real) if args.real else None
    batches = evaluation_dataset(samples, recipe_of(opened.model), args.batch_size)
    with terminal.progress_bar("pictures", len(samples)) as advance:
        evaluation = evaluate(
            opened.model,
            batches,
            samples.class_names,
            lambda count: [advance() for _ in range(count)],
        )
    summary = {"model": opened.title, "data": samples.origin, **evaluation.summary()}
    if right:
        summary["real_top1"] = real_accuracy(evaluation, right)
    if target:
        write_json(target, summary)
    if args.json == "-":
        terminal.write_json(summary)
    else:
        _tell(summary)
    return 0


def _tell(summary):
    terminal.tell(f"{summary['model']} on {summary['data']}, {summary['images']:,} pictures")
    for key, value in summary.items():
        if key.startswith("top") or key == "real_top1":
            terminal.tell(f"{key:28} {value:.2%}")
        elif isinstance(value, float):
            terminal.tell(f"{key:28} {value:.4g}")
    worst = sorted((c for c in summary["classes"] if c["images"]), key=lambda c: c["accuracy"])
    terminal.write_table(
        ("class", "pictures", "accuracy %"),
        [(c["name"], c["images"], 100 * c["accuracy"]) for c in worst[:20]],
    )
    if len(worst) > 20:
        terminal.tell(f"(the 20 least accurate of {len(worst)} classes)")
