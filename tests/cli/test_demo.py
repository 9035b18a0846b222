"""`keras-vit demo`, on pictures made here."""

import importlib.util
import re

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.cli import contact_sheet, demo
from keras_vit.registry import get_variant

NAMES = get_variant("ViT_Mini4").named("fashion-mnist").labels


@pytest.fixture
def data(tmp_path, monkeypatch, mini):
    """Six training and four test pictures a class, whose groups differ in brightness; a tiny model."""
    arrays = {}
    for split, count in (("train", 6), ("test", 4)):
        labels = np.repeat(np.arange(10, dtype="uint8"), count)
        group = [k for n in NAMES for k, names in enumerate(demo.GROUPS.values()) if n in names]
        noise = np.random.default_rng(count).integers(0, 20, (len(labels), 28, 28))
        arrays[f"{split}_images"] = (noise + 70 * np.take(group, labels)[:, None, None]).astype(
            "uint8"
        )
        arrays[f"{split}_labels"] = labels
    np.savez(tmp_path / "data.npz", **arrays)
    monkeypatch.setattr(demo, "DATA", tmp_path / "data.npz")
    monkeypatch.setattr(demo, "WEIGHTS", mini)
    monkeypatch.setattr(keras_vit, "ViT_Mini4", get_variant("Mini").function)
    monkeypatch.setattr(demo, "SHOTS", 6)
    monkeypatch.setattr(demo, "LEARNING_RATE", 0.03)  # its weights are random
    return arrays


@pytest.mark.filterwarnings(
    "ignore:.*native_serialization:DeprecationWarning"
)  # of the export from JAX
@pytest.mark.skipif(not importlib.util.find_spec("tensorflow"), reason="exports a SavedModel")
def test_the_whole_demo(run, data, tmp_path):
    out = tmp_path / "new" / "out"
    code, text, err = run("demo", "--out", out)
    assert code == 0
    assert re.search(r"   \d+\.\d% of 40 test pictures are named right", text)
    assert "all zeros: 25.0% right, which is chance" in text
    assert float(text.split("Fine-tuned: ")[1].split("%")[0]) > 75
    assert text.count("Largest difference") == 2
    assert sorted(path.name for path in out.iterdir()) == [
        "class_names.txt",
        "fine_tuned.keras",
        "pictures",
        "predictions.png",
        "saved_model",
    ]
    for path in out.iterdir():
        assert f"\n   {path.name}\n" in text
    with Image.open(out / "predictions.png") as sheet:
        assert sheet.width == contact_sheet.MARGIN + 4 * (2 * contact_sheet.SIDE + 14)
    commands = [line.split() for line in text.splitlines() if "classify" in line]
    second = commands[1]
    code, table, _ = run(*second[1:])
    assert code == 0
    assert len(table.splitlines()) == 1 + demo.SAMPLES
    assert {line.split("  ")[-1] for line in table.splitlines()[1:]} <= set(demo.GROUPS)


@pytest.fixture
def quick(data, monkeypatch):
    """The demo without its slow steps."""
    for name in ("_fine_tune", "_draw"):
        monkeypatch.setattr(demo, name, lambda *_: None)
    monkeypatch.setattr(demo, "_accuracy", lambda *_: 0.5)
    monkeypatch.setattr(demo, "_exported", lambda model, images, _: model.predict_on_batch(images))


def test_a_second_run_replaces_the_first_and_models_that_disagree_are_a_failure(
    run, quick, tmp_path, monkeypatch
):
    assert run("demo", "--out", tmp_path / "out")[0] == 0
    monkeypatch.setattr(demo, "_exported", lambda *_: np.full((demo.SAMPLES, 4), 0.25 + 2e-5))
    code, text, err = run("demo", "--out", tmp_path / "out")
    assert (code, err) == (1, "keras-vit: error: a difference above 1e-05\n")
    assert "0.0e+00\n" in text
    assert "2.0e-05\n" in text
    assert not list((tmp_path / "out").rglob(".*"))


def test_without_tensorflow_nothing_is_exported(run, quick, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(demo, "_exported", None)
    code, text, _ = run("demo", "--out", tmp_path / "out")
    assert code == 0
    assert "Left out: it needs TensorFlow, which is not installed.\n" in text


def test_regrouping_takes_as_many_pictures_of_each_group(data):
    pictures = demo._read("test")
    groups = demo._regrouped(pictures, NAMES)
    assert np.bincount(groups.labels).tolist() == [4, 4, 4, 4]  # there are 4 bags
    assert demo._regrouped(demo._read("train"), NAMES, 2).labels.tolist() == [
        0,
        0,
        1,
        1,
        2,
        2,
        3,
        3,
    ]
    brightness = groups.images.mean(axis=(1, 2, 3)) // 70
    np.testing.assert_array_equal(brightness, groups.labels)


def test_the_groups_hold_every_class_once():
    assert sorted(name for names in demo.GROUPS.values() for name in names) == sorted(NAMES)
