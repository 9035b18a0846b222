"""`keras-vit demo`"""

import dataclasses
import importlib.util
import pathlib

from keras_vit.cli import files, terminal

DATA = pathlib.Path(__file__).parents[1] / "data" / "fashion_mnist.npz"
WEIGHTS = "fashion-mnist"
GROUPS = {
    "top": ("T-shirt/top", "Pullover", "Coat", "Shirt"),
    "trousers or dress": ("Trouser", "Dress"),
    "shoe": ("Sandal", "Sneaker", "Ankle boot"),
    "bag": ("Bag",),
}
SHOTS = 20  # training pictures a group
EPOCHS = 20
LEARNING_RATE = 0.01
BATCH_SIZE = 16
SAMPLES = 12
TOLERANCE = 1e-5  # between probabilities


def add_commands(commands):
    """Adds the command to the subparsers of the program."""
    parser = commands.add_parser("demo", help="classify, fine-tune, save and export; no network")
    parser.add_argument(
        "--out",
        default="keras-vit-demo",
        metavar="DIR",
        help="folder for what it writes (default: keras-vit-demo)",
    )
    parser.set_defaults(run=_demo)


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Pictures uint8 (N, 28, 28, 3), and a label each (N,)."""

    images: object
    labels: object

    def take(self, indices):
        """The pictures at `indices`."""
        return Pictures(self.images[indices], self.labels[indices])


def _demo(args):
    _tell("A Vision Transformer at work, in four steps and about a minute.")
    terminal.start_keras()
    import keras
    import numpy as np

    import keras_vit
    from keras_vit.registry import get_variant

    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    names = get_variant("ViT_Mini4").named("fashion-mnist").labels
    train, test = _read("train"), _read("test")
    samples = test.take(np.random.default_rng(0).choice(len(test.labels), SAMPLES, replace=False))

    _tell("1. Classify pictures of clothes with ViT_Mini4, whose weights come with the package.")
    model = keras_vit.ViT_Mini4(weights=WEIGHTS)
    _tell(f"   {_accuracy(model, test):.1%} of {len(test.labels):,} test pictures are named right.")
    _draw(model, samples, names, out / "predictions.png")
    _save_samples(samples, out / "pictures")
    _tell(f"   predictions.png shows {SAMPLES} of them, and what the class token attends to.")

    _tell(f"2. Fine-tune on a new task from {SHOTS} pictures a class: {', '.join(GROUPS)}.")
    train, test = _regrouped(train, names, SHOTS), _regrouped(test, names)
    model = keras_vit.ViT_Mini4(weights=WEIGHTS, classes=len(GROUPS), pretrained_top=False)
    _tell(f"   With its new head, all zeros: {_accuracy(model, test):.1%} right, which is chance.")
    _fine_tune(model, train)
    _tell(f"   Fine-tuned: {_accuracy(model, test):.1%} right.")

    _tell("3. Save the fine-tuned model, load it again, compare.")
    expected = model.predict_on_batch(samples.images)
    with files.replacing(out / "fine_tuned.keras") as partial:
        model.save(partial)
    with files.replacing(out / "class_names.txt") as partial:
        partial.write_text("\n".join(GROUPS) + "\n")
    loaded = keras.models.load_model(out / "fine_tuned.keras")
    agree = _compare(loaded.predict_on_batch(samples.images), expected)

    _tell("4. Export a SavedModel for TensorFlow Serving, load it, compare.")
    if importlib.util.find_spec("tensorflow"):
        agree &= _compare(_exported(model, samples.images, out / "saved_model"), expected)
    else:
        _tell("   Left out: it needs TensorFlow, which is not installed.")

    _tell(f"Written to {out}:")
    for path in sorted(out.iterdir()):
        _tell(f"   {path.name}")
    _tell("Try next:")
    _tell(f"   keras-vit classify {out / 'pictures'} --model ViT_Mini4 --top 1")
    _tell(
        f"   keras-vit classify {out / 'pictures'} --model {out / 'fine_tuned.keras'} "
        f"--classes-file {out / 'class_names.txt'} --top 1"
    )
    _tell("   keras-vit classify YOUR_PHOTO.jpg    (downloads ViT_B16, 350 MB)")
    if not agree:
        terminal.say(f"error: a difference above {TOLERANCE}")
    return 0 if agree else 1


def _tell(line):
    terminal.write(line + "\n")


def _read(split):
    import numpy as np

    with np.load(DATA) as file:
        grey = file[f"{split}_images"]
        return Pictures(np.repeat(grey[..., None], 3, axis=-1), file[f"{split}_labels"])


def _regrouped(pictures, names, count=None):
    """Equally many pictures of each of `GROUPS`, labelled by group: `count`, or all there are."""
    import numpy as np

    group_of = {name: k for k, group in enumerate(GROUPS.values()) for name in group}
    labels = np.array([group_of[names[label]] for label in pictures.labels])
    shuffled = np.random.default_rng(0).permutation(len(labels))
    count = count or np.bincount(labels).min()
    chosen = np.concatenate([shuffled[labels[shuffled] == k][:count] for k in range(len(GROUPS))])
    return Pictures(pictures.images, labels).take(chosen)


def _accuracy(model, pictures):
    scores = model.predict(pictures.images, batch_size=100, verbose=0)
    return (scores.argmax(axis=-1) == pictures.labels).mean()


def _fine_tune(model, pictures):
    """All weights, by SGD with momentum and a cosine schedule, as the ViT paper does."""
    import keras

    steps = EPOCHS * -(-len(pictures.labels) // BATCH_SIZE)
    schedule = keras.optimizers.schedules.CosineDecay(LEARNING_RATE, steps)
    optimizer = keras.optimizers.SGD(schedule, momentum=0.9, global_clipnorm=1.0)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    with terminal.progress_bar("   fine-tuning", EPOCHS) as advance:
        after_epoch = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: advance())
        model.fit(
            pictures.images,
            pictures.labels,
            batch_size=BATCH_SIZE,
            epochs=EPOCHS,
            verbose=0,
            callbacks=[after_epoch],
        )


def _exported(model, images, path):
    """What a SavedModel of `model`, written to `path` and loaded again, makes of `images`."""
    with terminal.quiet():
        import tensorflow as tf

        with files.replacing(path) as partial:
            model.export(partial, verbose=False)
        artifact = tf.saved_model.load(path)  # kept alive: it owns the variables
        return artifact.serve(images.astype("float32")).numpy()


def _compare(found, expected):
    difference = abs(found - expected).max()
    _tell(f"   Largest difference of the {SAMPLES} pictures' probabilities: {difference:.1e}")
    return difference <= TOLERANCE


def _draw(model, pictures, names, path):
    """The contact sheet, as a PNG."""
    from keras_vit import analysis
    from keras_vit.cli.contact_sheet import contact_sheet

    (attention,) = analysis.attention_maps(model, pictures.images, [-1])
    layout = analysis.token_layout(model, pictures.images)
    heat = analysis.class_attention_grid(attention, layout).mean(axis=1)  # over the heads
    scores = model.predict_on_batch(pictures.images)
    captions = [
        (f"{names[row.argmax()]} {row.max():.0%}", f"truth: {names[label]}")
        for row, label in zip(scores, pictures.labels, strict=True)
    ]
    sheet = contact_sheet(
        "ViT_Mini4: prediction, and attention of the class token in the last block",
        pictures.images,
        heat,
        captions,
    )
    with files.replacing(path) as partial:
        sheet.save(partial)


def _save_samples(pictures, folder):
    from PIL import Image

    folder.mkdir(exist_ok=True)
    for k, image in enumerate(pictures.images):
        with files.replacing(folder / f"{k:02}.png") as partial:
            Image.fromarray(image).save(partial)
