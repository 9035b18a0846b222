"""From labelled pictures to a fine-tuned, evaluated model in a folder of its own."""

import contextlib
import csv
import dataclasses
import importlib.util
import inspect
import json
import math
import pathlib
import shutil

import keras
import numpy as np

from keras_vit import distribution
from keras_vit.files import remove_leftovers, replacing, write_json
from keras_vit.preprocessing import class_names_beside, recipe_of
from keras_vit.registry import get_variant
from keras_vit.training import callbacks as _callbacks
from keras_vit.training import figures, probes
from keras_vit.training.checkpoint import load_state
from keras_vit.training.evaluation import Evaluation, evaluate, logits_of
from keras_vit.training.opening import list_splits, open_samples
from keras_vit.training.optimization import add_lora, freeze, optimizer_for
from keras_vit.training.pipeline import evaluation_dataset, steps_per_epoch, training_dataset
from keras_vit.training.recipes import RECIPES, get_recipe
from keras_vit.training.samples import check_samples
from keras_vit.training.settings import PRECISIONS, PROBES, Settings
from keras_vit.training.splitting import few_shot, load_split, save_split, split_samples

_PARALLEL = {
    "none": lambda: contextlib.nullcontext(1),
    "data": distribution.data_parallel,
    "model": distribution.model_parallel,
}
STATE, BEST, CONFIG = "last.npz", "best.keras", "config.json"
SHOWN_CLASSES = 20  # of the plan


def finetune(settings, out, resume=False, say=print, verbose=1):
    """Trains a model on labelled pictures, validates it after every epoch, evaluates the best.

    Writes to `out`: config.json, classes.json, split.json (see `save_split`), history.csv,
    best.keras, last.npz (the whole state, from which `resume` goes on), tensorboard/, curves.png,
    metrics.json, confusion.csv, confusion.png.

    Args:
        settings: `Settings`; None with `resume` for those of the run.
        out: folder of the run; must not hold one yet, unless it is resumed.
        resume: go on after the last whole epoch of a run that was stopped; the result is the same
            as without the stop.
        say: function of one line, for people.
        verbose: of `fit`.

    Returns:
        The `Evaluation` of the best model on the validation pictures.

    Raises:
        ValueError: settings, pictures or folder that do not fit; a loss that is not a number.
        OSError: the folder cannot be written, or the disk is too full.
    """
    out = _own_folder(pathlib.Path(out))
    settings = _opened_run(settings, out, resume)
    keras.utils.set_random_seed(settings.seed)
    if settings.recipe in PROBES:
        train, validation = _pictures(settings, out, resume, say)
        model = _model(settings, train.class_names)
        _check_space(out, model)
        _start_run(settings, train, out)
        return _probe(settings, model, train, validation, out, say)
    with _PARALLEL[settings.distribute]() as devices:
        train, validation = _pictures(settings, out, resume, say)
        model = _model(settings, train.class_names)
        _check_space(out, model)
        if settings.distribute == "model":
            model = distribution.sharded(model)
        _fit(settings, model, train, validation, out, resume, say, verbose, devices)
    rows = _callbacks.read_history(out / "history.csv")
    _draw(figures.curves, (rows,), out / "curves.png", say)
    best = keras.models.load_model(out / BEST, compile=False)
    return _finish(settings, best, validation, out, say)


def _own_folder(out):
    """The folder of this process: all of them keep the whole run, as they may share no disk."""
    index, _ = distribution.process()
    return out / f"process-{index}" if index else out


def _start_run(settings, train, out):
    """Writes what the run begins with; from then on it can be resumed."""
    write_json(out / "classes.json", train.class_names)
    write_json(out / CONFIG, dataclasses.asdict(settings))


def _opened_run(settings, out, resume):
    """The settings of the run, its folder ready to write."""
    config = out / CONFIG
    if resume:
        if not config.exists():
            raise ValueError(f"There is no run to resume in '{out}': it has no {CONFIG}.")
        remove_leftovers(out)
        _check_writable(out)
        stored = Settings(**_tuples(json.loads(config.read_text())))
        if settings is not None and settings != stored:
            differing = [
                f"{field.name}={getattr(settings, field.name)!r} (the run has "
                f"{getattr(stored, field.name)!r})"
                for field in dataclasses.fields(Settings)
                if getattr(settings, field.name) != getattr(stored, field.name)
            ]
            raise ValueError(
                f"A run is resumed with its own settings. Received: {', '.join(differing)}. "
                "Leave them out, or start another run."
            )
        return stored
    if config.exists():
        raise ValueError(
            f"There is a run in '{out}' already. Go on with it by --resume, or choose another folder."
        )
    out.mkdir(parents=True, exist_ok=True)
    _check_writable(out)
    return settings


def _check_writable(out):
    probe = out / ".writable"
    probe.write_bytes(b"")
    probe.unlink()


def _tuples(config):
    return {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}


def _pictures(settings, out, resume, say):
    """(training, validation) `Samples`; the same ones when a run is resumed."""
    split = out / "split.json"
    if settings.validation:
        train = open_samples(settings.data)
        validation = open_samples(settings.validation, class_names=train.class_names)
        parts = {"train": train, "validation": validation}
    elif "validation" in list_splits(settings.data) and not _names_split(settings.data):
        train = open_samples(settings.data, "train")
        parts = {
            "train": train,
            "validation": open_samples(settings.data, "validation", train.class_names),
        }
    else:
        whole = "train" if list_splits(settings.data) and not _names_split(settings.data) else None
        parts = {"all": open_samples(settings.data, whole)}
    for samples in parts.values():
        for path, reason in samples.skipped:
            say(f"left out, {reason}: {path}")
    for name, samples in parts.items():
        check = check_samples(samples, settings.skip_bad)
        for text in check.bad:
            say(f"left out, {': '.join(text)}")
        parts[name] = check.samples
    if "all" in parts:
        if resume:
            train, validation = load_split(split, parts["all"])
        else:
            train, validation = split_samples(
                parts["all"], settings.validation_share, settings.seed
            )
            save_split(split, train, validation)
    else:
        train, validation = parts["train"], parts["validation"]
    if settings.shots:
        train = few_shot(train, settings.shots, settings.seed)
    return train, validation


def _names_split(text):
    return text.startswith("tfds:") and ":" in text.removeprefix("tfds:")


def _model(settings, class_names):
    """The untrained model with its new head; the head of the weights if they know these classes."""
    variant = get_variant(settings.model)
    options = {}
    if settings.recipe in RECIPES:
        recipe = get_recipe(settings.recipe)
        options = {
            "classifier_activation": recipe.loss,
            "dropout_rate": recipe.dropout_rate,
            "drop_path_rate": recipe.drop_path_rate,
            "gradient_checkpointing": settings.gradient_checkpointing,
        }
    known = inspect.signature(variant.function).parameters
    if settings.gradient_checkpointing and "gradient_checkpointing" not in known:
        raise ValueError(
            "Gradient checkpointing recomputes transformer blocks. "
            f"Received: {variant.name}, which has none. Leave it out."
        )
    options = {k: v for k, v in options.items() if v and k in known}
    if settings.image_size:
        options["input_shape"] = (*settings.image_size, 3)
    return variant.function(
        weights=settings.weights,
        classes=len(class_names),
        pretrained_top=settings.weights is not None
        and class_names_beside(settings.weights) == tuple(class_names),
        dtype=PRECISIONS[settings.precision],
        **options,
    )


def _check_space(out, model):
    """Raises OSError unless the disk has room for the files of a run."""
    # Weights, averages and two optimizer slots, the new state beside the old one, and the best model.
    needed = 10 * 4 * model.count_params()
    free = shutil.disk_usage(out).free
    if free < needed:
        raise OSError(
            f"The disk of '{out}' is too full: the run needs about {needed / 1e9:.1f} GB. "
            f"Received: {free / 1e9:.1f} GB free. Choose another folder by --out."
        )


@dataclasses.dataclass(frozen=True)
class _Length:
    """How long a training is."""

    batch_size: int
    steps_per_epoch: int
    epochs: int


def _length(settings, recipe, train, devices):
    batch_size = min(settings.batch_size, len(train))
    if batch_size % devices:
        raise ValueError(
            f"A batch is divided among {devices} devices. Received: batch_size={batch_size} of "
            f"{len(train)} pictures. Take a multiple of {devices}."
        )
    per_epoch = steps_per_epoch(train, batch_size, drop_remainder=True)
    if settings.steps:
        epochs = math.ceil(settings.steps / per_epoch)
        return _Length(batch_size, math.ceil(settings.steps / epochs), epochs)
    return _Length(batch_size, per_epoch, settings.epochs or recipe.epochs)


def _fit(settings, model, train, validation, out, resume, say, verbose, devices):
    recipe = get_recipe(settings.recipe)
    changed = {"learning_rate": settings.learning_rate, "layer_decay": settings.layer_decay}
    recipe = dataclasses.replace(recipe, **{k: v for k, v in changed.items() if v is not None})
    length = _length(settings, recipe, train, devices)
    trained = logits_of(model)
    if settings.weights is None and recipe.head_bias:
        head = trained.layers[-1]
        head.bias.assign(np.full(head.bias.shape, recipe.head_bias, "float32"))
    if settings.lora_rank:
        add_lora(model, settings.lora_rank)
    elif settings.frozen_blocks is not None:
        freeze(model, settings.frozen_blocks)
    optimizer = optimizer_for(
        trained,
        recipe,
        length.batch_size,
        length.steps_per_epoch,
        length.epochs,
        settings.accumulation,
    )
    # steps_per_execution stays 1: a step of any model here outlasts what Python does in between, and
    # an error can name its batch.
    # JAX always compiles; TensorFlow cannot compile a step that several devices share.
    xla = keras.backend.backend() == "jax" or (settings.xla and devices == 1)
    trained.compile(optimizer, _loss(recipe), weighted_metrics=["accuracy"], jit_compile=xla)
    state = out / STATE
    epoch = load_state(state, trained) if resume else 0
    if not resume:
        _start_run(settings, train, out)
    _tell_plan(settings, recipe, length, model, train, validation, out, epoch, xla, say)
    if epoch >= length.epochs:
        return
    history = _callbacks.History(out / "history.csv", epoch)
    steps_left = (length.epochs - epoch) * length.steps_per_epoch
    averages = [keras.callbacks.SwapEMAWeights()] if recipe.ema_momentum is not None else []
    picture_recipe = recipe_of(model)
    training_batches = training_dataset(
        train,
        picture_recipe,
        length.batch_size,
        augmentation=recipe.augmentation,
        seed=settings.seed,
        epoch=epoch,
        steps=length.steps_per_epoch,
        one_hot=True,
        drop_remainder=True,
    )
    validation_batches = evaluation_dataset(
        validation, picture_recipe, length.batch_size, one_hot=True, cache=0.1
    )
    if devices > 1 and keras.backend.backend() == "jax":
        training_batches = training_batches.map(_own_part)
        filled = steps_per_epoch(validation, length.batch_size) * length.batch_size
        weight = filled / len(validation)  # Keras divides the loss by the rows that fill up, too
        validation_batches = validation_batches.map(
            lambda *batch: _own_part(*_filled(*batch, length.batch_size, weight))
        )
    trained.fit(
        training_batches,
        validation_data=validation_batches,
        steps_per_epoch=length.steps_per_epoch,
        initial_epoch=epoch,
        epochs=length.epochs,
        shuffle=False,
        verbose=verbose,
        callbacks=[
            _callbacks.StopAtNaN(),
            _callbacks.TimeLeft(steps_left, say),
            *_tensorboard(out, say),
            history,
            *averages,
            _callbacks.BestModel(model, out / BEST, history, *averages),
            _callbacks.LastState(state),
        ],
    )


def _own_part(*batch):
    """The rows of a batch that this process gives to `fit`."""
    index, count = distribution.process()

    def part(x):
        size = x.shape[0] // count
        return x[index * size : (index + 1) * size]

    return tuple(map(part, batch))


def _filled(images, labels, batch_size, weight):
    """A batch of full size, and `weight` for each row, 0 for those that fill the last batch."""
    import tensorflow as tf

    count = tf.shape(images)[0]
    rows = tf.range(batch_size) % count
    weights = weight * tf.cast(tf.range(batch_size) < count, tf.float32)
    return (
        tf.ensure_shape(tf.gather(images, rows), (batch_size, *images.shape[1:])),
        tf.ensure_shape(tf.gather(labels, rows), (batch_size, *labels.shape[1:])),
        weights,
    )


def _loss(recipe):
    """The recipe's loss of logits and one-hot labels."""
    if recipe.loss == "sigmoid":
        return SigmoidCrossentropy()
    return keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=recipe.label_smoothing
    )


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """Binary cross-entropy of every class with logits, summed over the classes.

    Source: big_vision utils.py, sigmoid_xent.
    """

    def call(self, y_true, y_pred):
        return keras.ops.sum(
            keras.ops.binary_crossentropy(
                keras.ops.cast(y_true, y_pred.dtype), y_pred, from_logits=True
            ),
            axis=-1,
        )


def _tensorboard(out, say):
    """The TensorBoard callback, if TensorBoard is installed."""
    if importlib.util.find_spec("tensorboard") is None:
        say('no TensorBoard events are written: `pip install "keras-vit-zoo[training]"`')
        return []
    return [keras.callbacks.TensorBoard(str(out / "tensorboard"), write_graph=False)]


def _tell_plan(settings, recipe, length, model, train, validation, out, epoch, xla, say):
    counts = list(zip(train.class_names, train.counts(), strict=True))  # in label order
    shown = ", ".join(f"{name} {count:,}" for name, count in counts[:SHOWN_CLASSES])
    if len(counts) > SHOWN_CLASSES:
        shown += f", and {len(counts) - SHOWN_CLASSES:,} more in classes.json"
    height, width, _ = model.input_shape[1:]
    trained = sum(math.prod(v.shape) for v in model.trainable_variables)
    rate = recipe.peak_learning_rate(length.batch_size * settings.accumulation)
    accumulated = f" x {settings.accumulation}" if settings.accumulation > 1 else ""
    start = f", from epoch {epoch + 1}" if epoch else ""
    if epoch >= length.epochs:
        start = ", all of them done"
    for line in (
        f"data      {train.origin}: {len(train.class_names)} classes ({shown})",
        f"pictures  {len(train):,} to train, {len(validation):,} to validate",
        f"model     {settings.model}, weights {settings.weights or 'random'}, {height}x{width}, "
        f"{model.count_params():,} parameters, {trained:,} of them trained",
        f"recipe    {recipe.name}: {recipe.summary} ({recipe.source})",
        f"training  {length.epochs} epochs of {length.steps_per_epoch:,} steps of "
        f"{length.batch_size}{accumulated} pictures{start}; {recipe.optimizer}, learning rate up to "
        f"{rate:.3g}; {settings.precision}, XLA {'on' if xla else 'off'}, seed "
        f"{settings.seed}",
        f"output    {out}",
    ):
        say(line)


def _finish(settings, model, validation, out, say):
    """Evaluates the model that is kept, and writes what people look at."""
    batches = evaluation_dataset(validation, recipe_of(model), settings.batch_size)
    return _report(evaluate(model, batches, validation.class_names), out, say)


def _report(evaluation, out, say):
    write_json(out / "metrics.json", evaluation.summary())
    matrix = evaluation.confusion()
    with replacing(out / "confusion.csv") as partial, partial.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["", *evaluation.class_names])
        for name, row in zip(evaluation.class_names, matrix, strict=True):
            writer.writerow([name, *row])
    _draw(figures.confusion, (matrix, evaluation.class_names), out / "confusion.png", say)
    say(
        f"top-1 {evaluation.top(1):.2%}, top-{evaluation.k} {evaluation.top(evaluation.k):.2%}, "
        f"loss {evaluation.loss:.3f}, calibration error {evaluation.calibration_error:.3f} on "
        f"{len(evaluation.labels):,} pictures"
    )
    return evaluation


def _draw(figure, arguments, path, say):
    """A PNG, if matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        say(f'no {path.name} is drawn: `pip install "keras-vit-zoo[training]"`')
        return
    with replacing(path) as partial:
        figure(*arguments).savefig(partial, dpi=120)


def _probe(settings, model, train, validation, out, say):
    """A classifier on frozen features; but for "knn" it becomes the head of the model."""
    encoder = keras.Model(model.inputs, _head(model).input, name=model.name)
    say(f"recipe    {settings.recipe}: {PROBES[settings.recipe]}")
    say(f"pictures  {len(train):,} to learn from, {len(validation):,} to validate")
    recipe = recipe_of(model)
    found = [
        probes.features_of(encoder, evaluation_dataset(samples, recipe, settings.batch_size))
        for samples in (train, validation)
    ]
    (features, labels), (others, truth) = found
    classes = len(train.class_names)
    if settings.recipe == "knn":
        scores = probes.nearest_neighbours(features, labels, others, classes)
        return _report(Evaluation(train.class_names, truth, scores), out, say)
    fitted = {"few-shot": probes.ridge_classifier, "linear-probe": probes.linear_probe}[
        settings.recipe
    ]
    _head(model).set_weights(fitted(features, labels, classes))
    with replacing(out / BEST) as partial:
        model.save(partial)
    return _finish(settings, model, validation, out, say)


def _head(model):
    return next(layer for layer in reversed(model.layers) if isinstance(layer, keras.layers.Dense))
