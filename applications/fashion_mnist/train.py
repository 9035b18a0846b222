"""Trains the ViT that keras_vit ships, from scratch on the 60,000 images of Fashion-MNIST.

    apt-get install dataset-fashion-mnist
    python applications/fashion_mnist/train.py --out build/fashion_mnist

Expected: 92.5 % of the 10,000 test images, after 40 minutes on 2 busy CPU cores.
Writes history.csv (a row an epoch), result.json and vit_mini4_fashion_mnist.npz to --out. A run that
was stopped goes on from its last epoch when the command is given again. `--quick` is a smoke run.
"""

import argparse
import json
import math
import pathlib
import time

import keras
import numpy as np
from export import save_google_npz
from numpy.lib.stride_tricks import sliding_window_view
from prepare import CLASSES, DATA, SIDE, read_split

import keras_vit
from keras_vit.resampling import sincos_2d

BATCH = 128
EPOCHS = 14
PATCH_DROPOUT = 0.5
PATCH_DROPOUT_EPOCHS = 0.7  # share of the epochs; they take half of the time
WARM_UP_EPOCHS = 0.2
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 0.05
LABEL_SMOOTHING = 0.1
SHIFT = 1  # pixel
EMA_MOMENTUM = 0.998
WEIGHTS = "vit_mini4_fashion_mnist.npz"


def to_rgb(images):
    """Grey (B, H, W) to (B, H, W, 3)."""
    return np.repeat(images[..., None], 3, axis=-1)


class TrainingBatches(keras.utils.PyDataset):
    """Shuffled batches, each image shifted by up to `SHIFT` pixels and mirrored half of the time.

    A batch: uint8 images (B, 28, 28, 3) and one-hot labels (B, 10).
    """

    def __init__(self, images, labels, seed, batch=BATCH):
        super().__init__()
        self.images = images
        self.labels = labels
        self.batch = batch
        self.random = np.random.default_rng(seed)
        self.on_epoch_end()

    def __len__(self):
        return len(self.images) // self.batch  # whole batches only: one shape, compiled once

    def __getitem__(self, index):
        chosen = self.order[index * self.batch : (index + 1) * self.batch]
        return to_rgb(self._augmented(self.images[chosen])), np.eye(CLASSES, dtype="float32")[
            self.labels[chosen]
        ]

    def on_epoch_end(self):
        self.order = self.random.permutation(len(self.images))

    def _augmented(self, images):
        padded = np.pad(images, ((0, 0), (SHIFT, SHIFT), (SHIFT, SHIFT)))
        crops = sliding_window_view(padded, (SIDE, SIDE), axis=(1, 2))
        down, right = self.random.integers(0, 2 * SHIFT + 1, (2, len(images)))
        shifted = crops[np.arange(len(images)), down, right]  # (B, 28, 28)
        mirrored = self.random.random(len(images)) < 0.5
        shifted[mirrored] = shifted[mirrored, :, ::-1]
        return shifted


@keras.saving.register_keras_serializable(package="fashion_mnist")
class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    """Linear from 0 to `peak` over `warm_up` steps, then a half cosine to 0 at `steps`."""

    def __init__(self, peak, warm_up, steps):
        self.peak = peak
        self.warm_up = warm_up
        self.steps = steps

    def __call__(self, step):
        step = keras.ops.cast(step, "float32")
        progress = (step - self.warm_up) / max(1, self.steps - self.warm_up)
        cosine = 0.5 * (1 + keras.ops.cos(math.pi * keras.ops.clip(progress, 0.0, 1.0)))
        return self.peak * keras.ops.minimum((step + 1) / self.warm_up, cosine)

    def get_config(self):
        return {"peak": self.peak, "warm_up": self.warm_up, "steps": self.steps}


def start_with_sincos_positions(encoder):
    """Neighbours begin with similar positions; random ones take epochs to become so."""
    table = sincos_2d(*encoder.grid, encoder.width)
    encoder.own["positions"].assign(np.pad(table, ((encoder.positioned_tokens, 0), (0, 0))))


def compiled_model(steps_per_epoch, epochs):
    """The untrained model with its optimizer and loss; returns logits."""
    model = keras_vit.ViT_Mini4(
        weights=None, classifier_activation=None, patch_dropout_rate=PATCH_DROPOUT
    )
    start_with_sincos_positions(model.get_layer("vit_mini4_patch_encoder"))
    schedule = WarmUpCosine(
        LEARNING_RATE, WARM_UP_EPOCHS * steps_per_epoch, epochs * steps_per_epoch
    )
    # Muon turns the matrices of the blocks; everything else is left to its AdamW, without decay.
    optimizer = keras.optimizers.Muon(
        schedule,
        weight_decay=WEIGHT_DECAY,
        adam_weight_decay=0.0,
        exclude_layers=["patch_encoder", "head"],
        use_ema=True,
        ema_momentum=EMA_MOMENTUM,
    )
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=LABEL_SMOOTHING)
    # XLA runs TensorFlow on one CPU thread, which takes longer than plain TensorFlow on two.
    jit_compile = keras.backend.backend() != "tensorflow"
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=jit_compile)
    return model


class EndPatchDropout(keras.callbacks.Callback):
    """From an epoch on, every patch is seen, as in use."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        layer = self.model.get_layer(f"{self.model.name}_patch_dropout")
        if epoch >= self.epoch and layer.rate:
            layer.rate = 0.0
            self.model.make_train_function(force=True)


class HistoryFile(keras.callbacks.Callback):
    """Appends a row to a CSV file after every epoch; the loss and accuracy are those of training."""

    def __init__(self, path, clock=time.perf_counter):
        super().__init__()
        self.path = path
        self.clock = clock

    def on_epoch_begin(self, epoch, logs=None):
        self.start = self.clock()

    def on_epoch_end(self, epoch, logs=None):
        seconds = self.clock() - self.start
        if epoch == 0:
            self.path.write_text("epoch,loss,accuracy,seconds\n")
        with self.path.open("a") as file:
            file.write(f"{epoch + 1},{logs['loss']:.4f},{logs['accuracy']:.4f},{seconds:.1f}\n")


def train(images, labels, epochs, out):
    """Trains, or goes on; the returned model has the averaged weights."""
    batches = TrainingBatches(images, labels, seed=0)
    model = compiled_model(len(batches), epochs)
    model.fit(
        batches,
        epochs=epochs,
        verbose=2,
        callbacks=[
            EndPatchDropout(round(epochs * PATCH_DROPOUT_EPOCHS)),
            HistoryFile(out / "history.csv"),
            keras.callbacks.BackupAndRestore(out / "backup"),
        ],
    )
    return model


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="folder of the IDX files")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--quick", action="store_true", help="640 images, 2 epochs, 500 tests")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)

    images, labels = read_split("train", args.data)
    test_images, test_labels = read_split("test", args.data)
    epochs = args.epochs
    if args.quick:
        images, labels, epochs = images[:640], labels[:640], 2
        test_images, test_labels = test_images[:500], test_labels[:500]

    model = train(images, labels, epochs, args.out)
    save_google_npz(model, args.out / WEIGHTS)

    pixels = to_rgb(test_images)
    trained = model.predict(pixels, batch_size=500, verbose=0)
    loaded = keras_vit.ViT_Mini4(weights=args.out / WEIGHTS, classifier_activation=None)
    logits = loaded.predict(pixels, batch_size=500, verbose=0)
    result = {
        "test_images": len(pixels),
        "test_accuracy": float(np.mean(logits.argmax(axis=-1) == test_labels)),
        "parameters": model.count_params(),
        "epochs": epochs,
        "largest_difference_after_reload": float(np.abs(logits - trained).max()),
    }
    (args.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
