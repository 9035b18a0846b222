import gzip
import json
import pathlib
import struct
import sys

import keras
import numpy as np
import pytest

import keras_vit

FOLDER = pathlib.Path(__file__).parents[2] / "applications" / "fashion_mnist"


@pytest.fixture
def application(monkeypatch):
    """The modules of the application, forgotten again after the test."""
    names = ("prepare", "export", "train")
    monkeypatch.syspath_prepend(FOLDER)
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield lambda name: __import__(name)
    for name in names:
        sys.modules.pop(name, None)


def write_idx(path, array):
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), compresslevel=1))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Four IDX files of the published sizes; an image of class c is grey 20 c + 20."""
    folder = tmp_path_factory.mktemp("idx")
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        labels = np.tile(np.arange(10, dtype="uint8"), count // 10)
        images = np.repeat(labels * 20 + 20, 28 * 28).reshape(count, 28, 28)
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", labels)
    return folder


def randomized(model):
    """The model with every variable at a value of its own, so that a swap shows."""
    random = np.random.default_rng(1)
    model.set_weights([random.normal(0, 0.3, w.shape) for w in model.get_weights()])
    return model


def test_quick_run_exports_what_it_trained(application, data, tmp_path, capsys, monkeypatch):
    train = application("train")
    monkeypatch.setattr(train, "PATCH_DROPOUT_EPOCHS", 0)  # one graph, half the time
    train.main(["--quick", "--data", str(data), "--out", str(tmp_path)])
    result = json.loads((tmp_path / "result.json").read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == result
    assert result["test_images"] == 500
    assert result["parameters"] == 459_466
    assert result["largest_difference_after_reload"] < 1e-6
    history = (tmp_path / "history.csv").read_text().splitlines()
    assert history[0] == "epoch,loss,accuracy,seconds" and len(history) == 3
    first, last = (float(row.split(",")[1]) for row in history[1:])
    assert last < first < 2.4

    model = keras_vit.ViT_Mini4(weights=tmp_path / "vit_mini4_fashion_mnist.npz")
    assert np.any(keras.ops.convert_to_numpy(model.get_layer("vit_mini4_head").kernel))
    images = np.repeat(np.arange(20, 220, 20, dtype="uint8"), 28 * 28 * 3).reshape(10, 28, 28, 3)
    found = model.predict(images, verbose=0).argmax(axis=-1)  # the ten images are all there are
    assert np.mean(found == np.arange(10)) == pytest.approx(result["test_accuracy"])


def test_export_is_the_inverse_of_loading(application, tmp_path):
    model = randomized(keras_vit.ViT_Mini4(weights=None))
    path = tmp_path / "model.npz"
    application("export").save_google_npz(model, path)
    loaded = keras_vit.ViT_Mini4(weights=path)
    for expected, found in zip(model.weights, loaded.weights, strict=True):
        assert expected.path == found.path
        np.testing.assert_array_equal(expected.numpy(), found.numpy())


def test_export_has_the_names_and_shapes_of_vit_jax(application, tmp_path):
    application("export").save_google_npz(keras_vit.ViT_Mini4(weights=None), tmp_path / "m.npz")
    arrays = np.load(tmp_path / "m.npz")
    attention = "Transformer/encoderblock_5/MultiHeadDotProductAttention_1"
    shapes = {
        "embedding/kernel": (4, 4, 3, 96),
        "cls": (1, 1, 96),
        "Transformer/posembed_input/pos_embedding": (1, 50, 96),
        f"{attention}/query/kernel": (96, 3, 32),
        f"{attention}/query/bias": (3, 32),
        f"{attention}/out/kernel": (3, 32, 96),
        "Transformer/encoderblock_0/LayerNorm_2/scale": (96,),
        "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel": (96, 192),
        "Transformer/encoder_norm/bias": (96,),
        "head/kernel": (96, 10),
    }
    assert {name: arrays[name].shape for name in shapes} == shapes
    assert len(arrays.files) == 6 * 16 + 8
    assert {array.dtype for array in arrays.values()} == {np.dtype("float32")}


def test_export_refuses_a_model_without_names_in_these_files(application, tmp_path):
    model = keras_vit.ViT_Mini4(weights=None, positions="learned-2d")
    with pytest.raises(ValueError, match="no name for it. Received: variable .*row_positions"):
        application("export").save_google_npz(model, tmp_path / "m.npz")
    assert not list(tmp_path.iterdir())


def test_augmentation_shifts_and_mirrors_whole_pictures(application):
    train = application("train")
    image = np.zeros((28, 28), "uint8")
    image[10, 12:15] = 50, 100, 150
    batches = train.TrainingBatches(np.stack([image] * 256), np.full(256, 7), seed=0)
    assert len(batches) == 256 // train.BATCH
    pixels, labels = batches[0]
    assert pixels.shape == (train.BATCH, 28, 28, 3) and pixels.dtype == np.uint8
    np.testing.assert_array_equal(labels, np.eye(10)[np.full(train.BATCH, 7)])
    np.testing.assert_array_equal(pixels[..., 0], pixels[..., 2])
    rows, columns = zip(*(np.argwhere(p == 100)[0] for p in pixels[..., 0]), strict=True)
    assert set(rows) == {9, 10, 11}
    assert set(columns) == {12, 13, 14} | {27 - c for c in (12, 13, 14)}
    triples = {
        tuple(p[r, c - 1 : c + 2]) for p, r, c in zip(pixels[..., 0], rows, columns, strict=True)
    }
    assert triples == {(50, 100, 150), (150, 100, 50)}


def test_learning_rate_warms_up_and_ends_at_zero(application):
    schedule = application("train").WarmUpCosine(peak=2.0, warm_up=10, steps=110)
    rates = [float(schedule(step)) for step in (0, 4, 10, 60, 110)]
    np.testing.assert_allclose(rates, [0.2, 1.0, 2.0, 1.0, 0.0], atol=1e-6)


def test_patch_dropout_ends_at_its_epoch(application):
    train = application("train")
    model = train.compiled_model(steps_per_epoch=10, epochs=2)
    callback = train.EndPatchDropout(1)
    callback.set_model(model)
    callback.on_epoch_begin(0)
    assert model.get_layer("vit_mini4_patch_dropout").rate == train.PATCH_DROPOUT
    callback.on_epoch_begin(1)
    assert model.get_layer("vit_mini4_patch_dropout").rate == 0


def test_prepare_refuses_other_files(application, data, tmp_path):
    prepare = application("prepare")
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", np.zeros((10, 28, 28), "uint8"))
    with pytest.raises(ValueError, match=r"IDX file of uint8 \(10000, 28, 28\)"):
        prepare.read_split("test", tmp_path)
    for name in ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        (tmp_path / name).write_bytes((data / name).read_bytes())
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.full(10_000, 10, "uint8"))
    with pytest.raises(ValueError, match="below 10. Received: 10 in test"):
        prepare.read_split("test", tmp_path)


def test_prepare_writes_the_first_images_of_each_class(application, data, tmp_path):
    application("prepare").main(["--data", str(data), "--out", str(tmp_path / "part.npz")])
    part = np.load(tmp_path / "part.npz")
    assert part["train_images"].shape == (2000, 28, 28)
    assert part["test_images"].shape == (1000, 28, 28)
    np.testing.assert_array_equal(part["test_labels"], np.arange(1000) % 10)
    np.testing.assert_array_equal(part["test_images"][:, 0, 0], part["test_labels"] * 20 + 20)


def test_shipped_part_is_balanced():
    part = np.load(pathlib.Path(keras_vit.__file__).parent / "data" / "fashion_mnist.npz")
    for split, per_class in (("train", 200), ("test", 100)):
        assert part[f"{split}_images"].shape == (10 * per_class, 28, 28)
        assert part[f"{split}_images"].dtype == np.uint8
        np.testing.assert_array_equal(np.bincount(part[f"{split}_labels"]), [per_class] * 10)


def test_shipped_model_classifies_the_shipped_test_images():
    part = np.load(pathlib.Path(keras_vit.__file__).parent / "data" / "fashion_mnist.npz")
    images = np.repeat(part["test_images"][..., None], 3, axis=-1)
    found = keras_vit.ViT_Mini4().predict(images, batch_size=250, verbose=0).argmax(axis=-1)
    assert np.mean(found == part["test_labels"]) >= 0.91
