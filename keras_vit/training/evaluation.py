"""How good a classifier is: accuracy, per class, calibration, confusion."""

import dataclasses
import json
import pathlib
import re
import time

import keras
import numpy as np

CALIBRATION_BINS = 15
_SMALLEST = 1e-12  # probability in the logarithm


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a model made of labelled pictures.

    Attributes:
        class_names: in label order.
        labels: int (N,), the truth.
        probabilities: float32 (N, classes).
        images_per_second: of the prediction, the reading of the pictures included; None if nothing
            was predicted.
    """

    class_names: tuple
    labels: np.ndarray
    probabilities: np.ndarray
    images_per_second: float | None = None

    @property
    def predictions(self):
        """The best class of each picture, int (N,)."""
        return self.probabilities.argmax(axis=1)

    @property
    def k(self):
        """How many classes the top-k accuracy looks at: 5, or all of them."""
        return min(5, len(self.class_names))

    def top(self, k):
        """Share of the pictures whose class is among the k best, in 0..1."""
        best = np.argsort(-self.probabilities, axis=1, kind="stable")[:, :k]
        return float(np.mean((best == self.labels[:, None]).any(axis=1)))

    @property
    def loss(self):
        """Mean cross-entropy in nats."""
        own = np.take_along_axis(self.probabilities, self.labels[:, None], axis=1)
        return float(-np.mean(np.log(np.maximum(own.astype("float64"), _SMALLEST))))

    @property
    def calibration_error(self):
        """Expected calibration error over 15 bins of confidence, in 0..1 (Guo et al. 2017)."""
        confidence = self.probabilities.max(axis=1)
        right = self.predictions == self.labels
        bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
        gaps = [
            abs(confidence[bins == b].sum() - right[bins == b].sum())
            for b in range(CALIBRATION_BINS)
        ]
        return float(sum(gaps) / len(self.labels))

    def per_class(self):
        """For each class (name, pictures, accuracy or None where there is no picture)."""
        right = self.predictions == self.labels
        counts = np.bincount(self.labels, minlength=len(self.class_names))
        hits = np.bincount(self.labels[right], minlength=len(self.class_names))
        return [
            (name, int(count), hit / count if count else None)
            for name, count, hit in zip(self.class_names, counts, hits, strict=True)
        ]

    def confusion(self):
        """Pictures of each class (row) taken for each class (column), int (classes, classes)."""
        matrix = np.zeros((len(self.class_names),) * 2, int)
        np.add.at(matrix, (self.labels, self.predictions), 1)
        return matrix

    def summary(self):
        """The numbers as a dict for JSON."""
        return {
            "images": len(self.labels),
            "top1": self.top(1),
            f"top{self.k}": self.top(self.k),
            "loss": self.loss,
            "expected_calibration_error": self.calibration_error,
            "images_per_second": self.images_per_second,
            "classes": [
                {"name": name, "images": count, "accuracy": accuracy}
                for name, count, accuracy in self.per_class()
            ],
        }


def evaluate(model, dataset, class_names, on_batch=None):
    """Runs a classifier over labelled pictures.

    Args:
        model: a model with one output (B, classes): logits, or probabilities if its last activation
            makes them.
        dataset: batches of (images, labels); labels int (B,) or one-hot (B, classes).
        class_names: in label order.
        on_batch: called with the number of pictures after every batch.

    Returns:
        An `Evaluation`; its images per second are those after the first batch, in which the model is
        compiled.

    Raises:
        ValueError: another number of classes, labels out of range, no pictures, or scores that are
            not finite, with the batch.
    """
    classes = model.output_shape[-1]
    if len(class_names) != classes:
        raise ValueError(
            "The model and the data must have the same classes. "
            f"Received: a model of {classes} classes, data of {len(class_names)} "
            f"({', '.join(map(str, class_names[:3]))}, ...)."
        )
    activation = last_activation(model)
    found, labels, clock = [], [], [time.perf_counter()]
    for index, (images, truth) in enumerate(dataset):
        scores = np.asarray(
            keras.ops.convert_to_numpy(model.predict_on_batch(np.asarray(images))), "float32"
        )
        if not np.isfinite(scores).all():
            raise ValueError(
                "The model's scores must be finite. "
                f"Received: NaN or infinity in batch {index}. Look at the weights and the pictures."
            )
        truth = np.asarray(truth)
        found.append(scores)
        labels.append(truth.argmax(axis=1) if truth.ndim == 2 else truth)
        clock.append(time.perf_counter())
        if on_batch:
            on_batch(len(scores))
    if not found:
        raise ValueError("There is no picture to evaluate. Received: an empty data set.")
    labels = np.concatenate(labels).astype(int)
    check_labels(labels, classes)
    class_scores = probabilities(np.concatenate(found), activation)
    warm = 1 if len(found) > 1 else 0  # the first batch, if there are more, compiles the model
    rate = sum(map(len, found[warm:])) / (clock[-1] - clock[warm])
    return Evaluation(tuple(class_names), labels, class_scores, rate)


def probabilities(scores, activation):
    """Probabilities (N, classes) of the scores (N, classes) of a model that ends in an activation.

    Args:
        scores: float array.
        activation: what `last_activation` gives; "sigmoid" scores are divided by their sum.
    """
    if activation == "softmax":
        return scores
    if activation == "sigmoid":
        return scores / np.maximum(scores.sum(axis=1, keepdims=True), _SMALLEST)
    shifted = np.exp((scores - scores.max(axis=1, keepdims=True)).astype("float64"))
    return (shifted / shifted.sum(axis=1, keepdims=True)).astype("float32")


def check_labels(labels, classes):
    """Raises ValueError unless all labels are in 0..classes - 1; on a GPU the loss would be NaN."""
    labels = np.asarray(labels)
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise ValueError(
            f"Labels must be in 0..{classes - 1} for {classes} classes. "
            f"Received: {wrong.size} others, the first one {wrong[0]}. Count classes from 0."
        )


def last_activation(model):
    """Name of the activation that a classifier ends in: "softmax", "sigmoid" or "linear"."""
    layer = model.layers[-1]
    while isinstance(layer, keras.Model):
        layer = layer.layers[-1]
    activation = getattr(layer, "activation", None)
    return "linear" if activation is None else activation.__name__


def logits_of(model):
    """The same model up to its logits, with the very same layers.

    Args:
        model: ends in an `Activation` layer, or in the logits already.
    """
    last = model.layers[-1]
    if isinstance(last, keras.layers.Activation):
        return keras.Model(model.inputs, last.input, name=model.name)
    return model


def real_labels(names, file):
    """The ReaL labels of ImageNet validation pictures.

    Args:
        names: of the pictures, which end in their published file names.
        file: path of `real.json`, a list of the right labels of each of the 50,000 pictures.

    Returns:
        For every picture the list of its right labels, empty for some.

    Raises:
        ValueError: a picture has another name, none has a label, or the file is not that list.

    Source: Beyer et al. 2020 (arXiv:2006.07159); github.com/google-research/reassessed-imagenet.
    """
    try:
        lists = json.loads(pathlib.Path(file).read_text())
    except ValueError as error:
        raise ValueError(f"The file of ReaL labels is no JSON: {file}: {error}") from error
    if not isinstance(lists, list) or not all(isinstance(entry, list) for entry in lists):
        raise ValueError(
            f"The ReaL labels must be a JSON list of lists of labels. Received: {file}."
        )
    found = []
    for name in names:
        match = re.search(r"ILSVRC2012_val_(\d{8})", pathlib.Path(name).name)
        if match is None or not 1 <= int(match[1]) <= len(lists):
            raise ValueError(
                "ReaL labels belong to pictures named ILSVRC2012_val_00000001.JPEG and so on. "
                f"Received: {name}, with {len(lists)} entries in {file}."
            )
        found.append(lists[int(match[1]) - 1])
    if not any(found):
        raise ValueError(f"None of the {len(found)} pictures has a ReaL label in {file}.")
    return found


def real_accuracy(evaluation, right):
    """Accuracy by the ReaL labels.

    Args:
        evaluation: of ImageNet validation pictures, 1,000 classes.
        right: their `real_labels`.

    Returns:
        Share in 0..1 of the pictures with a right label whose prediction is one of them.
    """
    pairs = zip(evaluation.predictions.tolist(), right, strict=True)
    return float(np.mean([prediction in labels for prediction, labels in pairs if labels]))
