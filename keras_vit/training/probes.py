"""Classifiers on frozen features: ridge regression, logistic regression, nearest neighbours."""

import keras
import numpy as np

from keras_vit.training.evaluation import check_labels

RIDGE = 1.0
NEIGHBOURS = 20
TEMPERATURE = 0.07
_PROBE_EPOCHS = 100
_PROBE_BATCH = 1024
_PROBE_RATE = 1e-3


def features_of(model, dataset, on_batch=None):
    """What a model gives for every picture of a data set.

    Args:
        model: without a head, output (B, D).
        dataset: batches of (images, labels int (B,)).
        on_batch: called with the number of pictures after every batch.

    Returns:
        float32 features (N, D) and int labels (N,).
    """
    features, labels = [], []
    for images, truth in dataset:
        features.append(
            np.asarray(keras.ops.convert_to_numpy(model.predict_on_batch(np.asarray(images))))
        )
        labels.append(np.asarray(truth))
        if on_batch:
            on_batch(len(labels[-1]))
    return np.concatenate(features).astype("float32"), np.concatenate(labels).astype(int)


def ridge_classifier(features, labels, classes, ridge=RIDGE):
    """The linear classifier of the ViT paper's few-shot evaluation: least squares to targets of -1, 1.

    Args:
        features: (N, D).
        labels: int (N,), 0..classes - 1.
        classes: how many.
        ridge: weight of the squared norm of the matrix, above 0.

    Returns:
        kernel float32 (D, classes) and bias float32 (classes,).

    Raises:
        ValueError: labels out of range, or `ridge` not above 0.

    Source: Dosovitskiy et al. 2021, section 4.1; big_vision evaluators/fewshot_lsr.py.
    """
    check_labels(labels, classes)
    if not ridge > 0:
        raise ValueError(f"ridge must be above 0. Received: ridge={ridge}.")
    x = np.asarray(features, "float64")
    mean = x.mean(axis=0)
    x = x - mean
    targets = 2.0 * np.eye(classes)[labels] - 1.0
    offset = targets.mean(axis=0)
    targets = targets - offset
    if len(x) < x.shape[1]:  # the smaller of the two equal systems
        kernel = x.T @ np.linalg.solve(x @ x.T + ridge * np.eye(len(x)), targets)
    else:
        kernel = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ targets)
    return kernel.astype("float32"), (offset - mean @ kernel).astype("float32")


def linear_probe(features, labels, classes, epochs=_PROBE_EPOCHS):
    """Multinomial logistic regression on standardised features, by AdamW.

    Args:
        features: (N, D).
        labels: int (N,), 0..classes - 1.
        classes: how many.
        epochs: passes over the features.

    Returns:
        kernel float32 (D, classes) and bias float32 (classes,), for the features as they are.

    Raises:
        ValueError: labels out of range.
    """
    check_labels(labels, classes)
    mean, std = features.mean(axis=0), features.std(axis=0) + 1e-6
    head = keras.layers.Dense(classes, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((features.shape[1],)), head])
    steps = epochs * -(-len(features) // _PROBE_BATCH)
    model.compile(
        keras.optimizers.AdamW(
            keras.optimizers.schedules.CosineDecay(_PROBE_RATE, steps), weight_decay=1e-2
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit((features - mean) / std, labels, batch_size=_PROBE_BATCH, epochs=epochs, verbose=0)
    kernel, bias = model.get_weights()
    kernel = kernel / std[:, None]
    return kernel, bias - mean @ kernel


def nearest_neighbours(
    train_features, train_labels, features, classes, neighbours=NEIGHBOURS, temperature=TEMPERATURE
):
    """Scores by the weighted vote of the nearest training features, by cosine.

    Args:
        train_features: (M, D).
        train_labels: int (M,).
        features: (N, D), to classify.
        classes: how many.
        neighbours: how many vote, at least 1; all if there are fewer.
        temperature: a vote weighs exp(cosine / temperature).

    Returns:
        float32 (N, classes), rows sum to 1.

    Raises:
        ValueError: labels out of range, or `neighbours` below 1.

    Source: Wu et al. 2018 (arXiv:1805.01978), section 3.4; facebookresearch/dinov2 eval/knn.py.
    """
    check_labels(train_labels, classes)
    if neighbours < 1:
        raise ValueError(f"neighbours must be at least 1. Received: neighbours={neighbours}.")
    neighbours = min(neighbours, len(train_features))
    unit = _unit(train_features)
    votes = np.zeros((len(features), classes), "float32")
    for start in range(0, len(features), 1024):
        cosine = _unit(features[start : start + 1024]) @ unit.T
        nearest = np.argpartition(-cosine, neighbours - 1, axis=1)[:, :neighbours]
        weights = np.exp((np.take_along_axis(cosine, nearest, axis=1) - 1) / temperature)
        rows = np.arange(start, start + len(cosine))[:, None]
        np.add.at(votes, (rows, train_labels[nearest]), weights)
    return votes / votes.sum(axis=1, keepdims=True)


def _unit(features):
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
