import numpy as np
import pytest

from keras_vit.training.probes import linear_probe, nearest_neighbours, ridge_classifier

RANDOM = np.random.default_rng(0)
CENTRES = RANDOM.normal(size=(3, 8)).astype("float32")


def clouds(count):
    labels = np.arange(count) % 3
    return CENTRES[labels] + 0.1 * RANDOM.normal(size=(count, 8)).astype("float32") + 5, labels


@pytest.mark.parametrize("count", [6, 60])  # fewer and more than dimensions
def test_few_shot_solves_the_ridge_equations(count):
    features, labels = clouds(count)
    kernel, bias = ridge_classifier(features, labels, 3, ridge=0.5)
    x = features.astype("float64") - features.mean(axis=0)
    targets = 2.0 * np.eye(3)[labels] - 1
    residual = x.T @ (x @ kernel - (targets - targets.mean(axis=0))) + 0.5 * kernel
    assert np.abs(residual).max() < 1e-4
    np.testing.assert_allclose(
        (features @ kernel + bias).mean(axis=0), targets.mean(axis=0), atol=1e-4
    )


@pytest.mark.parametrize("fit", [ridge_classifier, linear_probe])
def test_linear_classifiers_tell_clouds_apart(fit):
    kernel, bias = fit(*clouds(30), 3)
    features, labels = clouds(60)
    assert ((features @ kernel + bias).argmax(axis=1) == labels).all()


def test_nearest_neighbours_vote_by_cosine():
    train = np.array([[1, 0], [0, 1], [0.8, 0.6]], "float32")
    scores = nearest_neighbours(
        train, np.array([0, 1, 1]), np.array([[2, 0]], "float32"), 2, neighbours=2, temperature=0.5
    )
    votes = np.exp([0.0, (0.8 - 1) / 0.5])
    np.testing.assert_allclose(scores, [votes / votes.sum()], rtol=1e-5)


def test_more_neighbours_than_pictures_is_all_of_them():
    features, labels = clouds(9)
    assert nearest_neighbours(features, labels, features, 3, neighbours=100).shape == (9, 3)


def test_errors():
    features, labels = clouds(6)
    with pytest.raises(ValueError, match="ridge=0"):
        ridge_classifier(features, labels, 3, ridge=0)
    with pytest.raises(ValueError, match="neighbours=0"):
        nearest_neighbours(features, labels, features, 3, neighbours=0)
    with pytest.raises(ValueError, match=r"in 0\.\.1 for 2 classes"):
        ridge_classifier(features, labels, 2)
