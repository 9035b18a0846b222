import json
import types

import keras
import numpy as np
import pytest

from keras_vit.training.evaluation import (
    Evaluation,
    check_labels,
    evaluate,
    last_activation,
    logits_of,
    real_accuracy,
    real_labels,
)

NAMES = ("cat", "dog", "owl")
PROBABILITIES = np.array(
    [[0.7, 0.2, 0.1], [0.4, 0.4, 0.2], [0.1, 0.3, 0.6], [0.25, 0.25, 0.5]], "float32"
)
EVALUATION = Evaluation(NAMES, np.array([0, 1, 2, 0]), PROBABILITIES, 2.0)


def classifier(activation):
    """Passes its input on, as scores of 3 classes."""
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(3, kernel_initializer="identity")(inputs)
    if activation:
        outputs = keras.layers.Activation(activation)(outputs)
    return keras.Model(inputs, outputs)


def test_accuracies_by_hand():
    assert EVALUATION.top(1) == 0.5  # of equals the first class is the prediction
    assert EVALUATION.top(2) == 1.0
    assert EVALUATION.k == 3
    assert EVALUATION.loss == pytest.approx(-np.log([0.7, 0.4, 0.6, 0.25]).mean(), rel=1e-6)
    assert EVALUATION.per_class() == [("cat", 2, 0.5), ("dog", 1, 0.0), ("owl", 1, 1.0)]
    np.testing.assert_array_equal(EVALUATION.confusion(), [[1, 0, 1], [1, 0, 0], [0, 0, 1]])


def test_calibration_error_by_hand():
    # Confidences 0.7 (right), 0.4 (wrong), 0.6 (right), 0.5 (wrong), each in a bin of its own.
    assert EVALUATION.calibration_error == pytest.approx((0.3 + 0.4 + 0.4 + 0.5) / 4, rel=1e-5)


def test_summary_is_json():
    summary = json.loads(json.dumps(EVALUATION.summary()))
    assert summary["top1"] == 0.5 and summary["top3"] == 1.0
    assert summary["images_per_second"] == 2.0


def test_the_first_batch_does_not_count_for_the_speed(monkeypatch):
    times = iter([0.0, 10.0, 11.0, 12.0])  # the first batch takes 10 s, the others 1 s
    clock = types.SimpleNamespace(perf_counter=lambda: next(times))
    monkeypatch.setattr("keras_vit.training.evaluation.time", clock)
    batch = (np.zeros((4, 3), "float32"), np.zeros(4, int))
    assert evaluate(classifier(None), [batch] * 3, NAMES).images_per_second == 4.0


def test_a_class_without_pictures_has_no_accuracy():
    evaluation = Evaluation(NAMES, np.array([0]), PROBABILITIES[:1])
    assert evaluation.per_class()[2] == ("owl", 0, None)


@pytest.mark.parametrize("one_hot", [False, True])
def test_logits_and_probabilities_say_the_same(one_hot):
    logits = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
    labels = np.arange(10) % 3
    truth = np.eye(3)[labels] if one_hot else labels
    batches = [(logits[:6], truth[:6]), (logits[6:], truth[6:])]
    found = [evaluate(classifier(name), batches, NAMES) for name in (None, "softmax")]
    assert last_activation(classifier(None)) == "linear"
    np.testing.assert_array_equal(found[0].labels, labels)
    np.testing.assert_allclose(found[0].probabilities, found[1].probabilities, atol=1e-6)
    rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found[0].probabilities, rows, atol=1e-6)


def test_logits_of_shares_the_layers():
    model = classifier("softmax")
    assert logits_of(model).layers[-1] is model.layers[-2]
    assert logits_of(logits_of(model)).layers[-1] is model.layers[-2]


def test_errors_name_the_cause():
    model, x = classifier(None), np.zeros((2, 3), "float32")
    with pytest.raises(ValueError, match="a model of 3 classes, data of 2"):
        evaluate(model, [(x, np.array([0, 1]))], NAMES[:2])
    with pytest.raises(
        ValueError, match=r"in 0\.\.2 for 3 classes. Received: 1 others, the first one 3"
    ):
        evaluate(model, [(x, np.array([0, 3]))], NAMES)
    with pytest.raises(ValueError, match="NaN or infinity in batch 1"):
        evaluate(model, [(x, np.array([0, 1])), (x * np.nan, np.array([0, 1]))], NAMES)
    with pytest.raises(ValueError, match="an empty data set"):
        evaluate(model, [], NAMES)
    with pytest.raises(ValueError, match="the first one -1"):
        check_labels([0, -1], 3)


def test_real_labels_leave_out_pictures_without_any(tmp_path):
    file = tmp_path / "real.json"
    file.write_text(json.dumps([[0], [0, 2], [], [1]]))
    paths = [f"val/ILSVRC2012_val_0000000{k}.JPEG" for k in (1, 2, 3, 4)]
    assert real_accuracy(EVALUATION, real_labels(paths, file)) == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="ILSVRC2012_val"):
        real_labels(["cat.jpg"], file)
    with pytest.raises(ValueError, match="None of the 1 pictures"):
        real_labels(paths[2:3], file)
    for text in ("[[0]", '{"a": 1}'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"ReaL labels .*real\.json"):
            real_labels(paths, file)
