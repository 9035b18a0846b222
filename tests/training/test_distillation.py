import keras
import numpy as np
import pytest

from keras_vit.models import plain
from keras_vit.training.distillation import Distiller

CONFIG = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 16))
IMAGES = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3)).astype("float32")
LABELS = np.eye(3, dtype="float32")[[0, 1, 2, 0, 1, 2]]


def model(seed, classes=3):
    built = plain.model(CONFIG, classes=classes, classifier_activation=None)
    head = built.layers[-1]
    head.kernel.assign(np.random.default_rng(seed).normal(0, 0.5, head.kernel.shape))
    return built


def log_softmax(x):
    x = x - x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


@pytest.mark.parametrize("hard", [True, False])
def test_loss_by_hand(hard):
    student, teacher = model(1), model(2)
    distiller = Distiller(student, teacher, hard=hard, alpha=0.3, temperature=3.0)
    distiller.compile("sgd")
    found = distiller.evaluate(IMAGES, LABELS, verbose=0)
    s, t = student.predict(IMAGES, verbose=0), teacher.predict(IMAGES, verbose=0)
    labels = -(LABELS * log_softmax(s)).sum(axis=1)
    if hard:
        taught = -np.take_along_axis(log_softmax(s), t.argmax(axis=1)[:, None], axis=1)[:, 0]
    else:
        p, q = log_softmax(t / 3), log_softmax(s / 3)
        taught = 9 * (np.exp(p) * (p - q)).sum(axis=1)
    assert found == pytest.approx((0.7 * labels + 0.3 * taught).mean(), rel=1e-5)


def test_only_the_student_learns():
    student, teacher = model(1), model(2)
    before = [w.copy() for w in teacher.get_weights()]
    distiller = Distiller(student, teacher, alpha=1.0)
    distiller.compile(keras.optimizers.Adam(3e-3), metrics=["accuracy"])
    losses = distiller.fit(IMAGES, LABELS, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    for old, new in zip(before, teacher.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_config_round_trip():
    distiller = Distiller(model(1), model(2), hard=False, alpha=0.25, temperature=2.0)
    again = Distiller.from_config(distiller.get_config())
    assert (again.hard, again.alpha, again.temperature) == (False, 0.25, 2.0)
    assert again.student.name == "vit"


def test_errors():
    with pytest.raises(ValueError, match="same classes. Received: 3 and 4"):
        Distiller(model(1), model(2, classes=4))
    with pytest.raises(ValueError, match="alpha=2"):
        Distiller(model(1), model(2), alpha=2)
