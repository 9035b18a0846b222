"""Does it learn? Three measurements on real pictures.

    python benchmarks/learning.py few-shot
    python benchmarks/learning.py probes --weights dinov2_vits14.safetensors
    python benchmarks/learning.py positions

few-shot: handwritten digits (scikit-learn's, 8x8, enlarged), 20 of each class to learn from, the other
1,597 to test; the shipped ViT-Mini/4, which saw clothes alone, fine-tuned and from scratch, both by AdamW,
3 seeds. 8 minutes on two CPU cores.
probes: a linear probe and nearest neighbours on the frozen class token of DINOv2 ViT-S/14 at 112 px;
5,000 pictures of Fashion-MNIST to learn from, 2,000 to test. 8 minutes.
positions: ViT-Mini/4 from scratch on Fashion-MNIST for 3 epochs with no positions, learned 1-D, learned
2-D and fixed sine-cosine ones. 20 minutes.

Fashion-MNIST comes from TensorFlow Datasets: its folder is --data-dir, or ~/tensorflow_datasets.
"""

import dataclasses
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import measuring
import numpy as np

import keras_vit
from keras_vit import training
from keras_vit.preprocessing import recipe_of
from keras_vit.training.augmentation import Augmentation
from keras_vit.training.evaluation import evaluate
from keras_vit.training.opening import open_samples
from keras_vit.training.pipeline import evaluation_dataset, steps_per_epoch, training_dataset
from keras_vit.training.probes import features_of, linear_probe, nearest_neighbours
from keras_vit.training.samples import Samples
from keras_vit.training.splitting import few_shot

SHOTS, SEEDS, MARGIN = 20, 3, 0.05
POSITIONS = ("none", "learned-1d", "learned-2d", "sincos-2d")
PROBE_SIZE = 112


def trained(model, samples, epochs, batch_size, learning_rate, seed):
    """Trains a model with AdamW on pictures cut at random; returns the seconds."""
    recipe = dataclasses.replace(
        training.get_recipe("deit-scratch"),
        learning_rate=learning_rate,
        reference_batch=None,
        warm_up_epochs=1,
        ema_momentum=None,
    )
    steps = steps_per_epoch(samples, batch_size, drop_remainder=True)
    model.compile(
        training.optimizer_for(model, recipe, batch_size, steps, epochs),
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        jit_compile=False,
    )
    batches = training_dataset(
        samples,
        recipe_of(model),
        batch_size,
        seed=seed,
        one_hot=True,
        drop_remainder=True,
        augmentation=Augmentation(crop_area=(0.6, 1.0), flip=False),
    )
    start = time.perf_counter()
    model.fit(batches, epochs=epochs, steps_per_epoch=steps, shuffle=False, verbose=0)
    return time.perf_counter() - start


def accuracy(model, samples):
    batches = evaluation_dataset(samples, recipe_of(model), 250)
    return evaluate(model, batches, samples.class_names).top(1)


def digits():
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    enlarged = [
        np.asarray(Image.fromarray(np.uint8(image * 255 / 16)).resize((28, 28), Image.BICUBIC))
        for image in found.images
    ]
    return Samples(
        np.stack(enlarged), found.target, tuple("0123456789"), origin="digits of scikit-learn"
    )


def measure_few_shot(arguments):
    samples, rows = digits(), []
    for seed in range(SEEDS):
        shown = few_shot(samples, SHOTS, seed)
        rest = [k for k, name in enumerate(samples.names) if name not in set(shown.names)]
        row = {"seed": seed}
        for name, weights in (("fine-tuned", "fashion-mnist"), ("from scratch", None)):
            keras.utils.set_random_seed(seed)
            model = keras_vit.ViT_Mini4(
                weights=weights, classes=10, pretrained_top=False, classifier_activation=None
            )
            trained(model, shown, 60, 20, 5e-4, seed)
            row[name] = accuracy(model, samples.select(rest))
        rows.append({**row, "margin": row["fine-tuned"] - row["from scratch"]})
        print(rows[-1], flush=True)
    targets = [
        measuring.target("smallest margin", min(r["margin"] for r in rows), MARGIN, at_most=False)
    ]
    title = f"{SHOTS} pictures a class of handwritten digits, ViT-Mini/4"
    measuring.write(
        arguments.out, "learning_few_shot", title, {"Accuracy": rows, "Targets": targets}
    )


def measure_probes(arguments):
    model = keras_vit.DINOv2_S14(
        weights=arguments.weights,
        include_top=False,
        pooling="token",
        input_shape=(PROBE_SIZE, PROBE_SIZE, 3),
    )
    train, test = (fashion_mnist(s, arguments) for s in ("train[:5000]", "test[:2000]"))
    recipe = recipe_of(model)
    (features, labels), (others, truth) = (
        features_of(model, evaluation_dataset(samples, recipe, 50)) for samples in (train, test)
    )
    kernel, bias = linear_probe(features, labels, 10)
    scores = {
        "linear probe": others @ kernel + bias,
        "nearest neighbours (20)": nearest_neighbours(features, labels, others, 10),
    }
    rows = [
        {"classifier": name, "accuracy": float(np.mean(score.argmax(axis=1) == truth))}
        for name, score in scores.items()
    ]
    title = f"Frozen DINOv2 ViT-S/14 at {PROBE_SIZE} px on Fashion-MNIST: {len(train)} to learn, {len(test)} to test"
    measuring.write(arguments.out, "learning_probes", title, {"Accuracy": rows})


def measure_positions(arguments):
    train, test = (fashion_mnist(split, arguments) for split in ("train", "test"))
    rows = []
    for positions in POSITIONS:
        keras.utils.set_random_seed(0)
        model = keras_vit.ViT_Mini4(
            weights=None, positions=positions, patch_dropout_rate=0.5, classifier_activation=None
        )
        seconds = trained(model, train, arguments.epochs, 128, 1e-3, 0)
        rows.append(
            {
                "positions": positions,
                "parameters": model.count_params(),
                "test accuracy": accuracy(model, test),
                "seconds": seconds,
            }
        )
        print(rows[-1], flush=True)
    title = f"Positions of ViT-Mini/4, {arguments.epochs} epochs of Fashion-MNIST"
    measuring.write(arguments.out, "learning_positions", title, {"Accuracy": rows})


def fashion_mnist(split, arguments):
    return open_samples("tfds:fashion_mnist", split, data_dir=arguments.data_dir)


def main():
    parser = measuring.parser(__doc__)
    parser.add_argument("what", choices=("few-shot", "probes", "positions"))
    parser.add_argument("--weights", help="DINOv2 ViT-S/14, for probes")
    parser.add_argument("--data-dir", help="of TensorFlow Datasets")
    parser.add_argument("--epochs", type=int, default=3, help="of positions, default 3")
    arguments = parser.parse_args()
    {"few-shot": measure_few_shot, "probes": measure_probes, "positions": measure_positions}[
        arguments.what
    ](arguments)


if __name__ == "__main__":
    main()
