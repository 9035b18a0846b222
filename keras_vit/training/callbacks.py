"""What happens besides `fit`: files of a run, time left, and the end of a training that diverged."""

import csv
import math
import pathlib
import time

import keras

from keras_vit.files import replacing
from keras_vit.training.checkpoint import save_state

MEASURED_STEPS = 10  # after the first one, which compiles


class StopAtNaN(keras.callbacks.Callback):
    """Ends a training whose loss is not finite with an error that names the step."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            raise ValueError(
                f"The loss is no longer a number. Received: loss={loss} in epoch {self.epoch + 1}, "
                f"batch {batch + 1}. Lower the learning rate, or train in float32; the last good "
                "state is kept."
            )


class TimeLeft(keras.callbacks.Callback):
    """Tells after the first steps how long the training will take.

    Args:
        steps: of the whole training that are left.
        say: function of one line.
    """

    def __init__(self, steps, say):
        super().__init__()
        self.steps = steps
        self.say = say
        self.done = 0

    def on_train_batch_end(self, batch, logs=None):
        self.done += 1
        if self.done == 1:
            self.start = time.perf_counter()
        elif self.done == 1 + min(MEASURED_STEPS, self.steps - 1):
            a_step = (time.perf_counter() - self.start) / (self.done - 1)
            left = a_step * (self.steps - self.done)
            self.say(f"{a_step * 1000:.0f} ms a step: about {duration(left)} left")


def duration(seconds):
    """A time for people: "40 s", "12 min", "3.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class History(keras.callbacks.Callback):
    """A CSV file with a row an epoch; rows of epochs that are done again are dropped.

    Args:
        path: of the file.
        epoch: number of epochs done before.
    """

    def __init__(self, path, epoch=0):
        super().__init__()
        self.path = pathlib.Path(path)
        self.rows = [row for row in read_history(path) if row["epoch"] <= epoch]

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch + 1, **{k: float(v) for k, v in logs.items()}}
        self.rows.append({**row, "seconds": time.perf_counter() - self.start})
        with replacing(self.path) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)


def read_history(path):
    """Rows of a history file as dicts of numbers, none if there is no file."""
    path = pathlib.Path(path)
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            {k: int(v) if k == "epoch" else float(v) for k, v in row.items()}
            for row in csv.DictReader(file)
        ]


class LastState(keras.callbacks.Callback):
    """Writes the whole state after every epoch, from which the training can go on."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        save_state(self.path, self.model, epoch + 1)


class BestModel(keras.callbacks.Callback):
    """Saves a model whenever it is the best so far: by validation accuracy, then by validation loss.

    Args:
        model: what to save, sharing the layers of the one in training.
        path: of the file, .keras.
        history: the `History` of the run, called before this.
        averages: a `keras.callbacks.SwapEMAWeights` called before this, if the averaged weights are
            to be saved.
    """

    def __init__(self, model, path, history, averages=None):
        super().__init__()
        self.kept = model
        self.path = pathlib.Path(path)
        self.history = history
        self.averages = averages

    def on_epoch_end(self, epoch, logs=None):
        *before, now = ((row["val_accuracy"], -row["val_loss"]) for row in self.history.rows)
        if before and now <= max(before) and self.path.exists():
            return
        if self.averages:
            self.averages.on_test_begin()
        with replacing(self.path) as partial:
            self.kept.save(partial)
        if self.averages:
            self.averages.on_test_end()
