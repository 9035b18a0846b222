"""ONNX and LiteRT files, and the float32 models they are made of."""

import dataclasses
import sys

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import export, registry
from keras_vit.export import onnx_file
from keras_vit.export.litert_file import run_litert
from keras_vit.export.onnx_file import run_onnx
from keras_vit.export.signatures import outputs_of
from keras_vit.export.warm_up import shipped_pictures
from keras_vit.models import plain

pytest.importorskip("tensorflow")
if keras.config.backend() != "tensorflow":
    pytest.skip("The export runs on TensorFlow.", allow_module_level=True)


def tiny(name, **options):
    config = registry.get_variant(name).config
    attention = config.attention[-2:] if isinstance(config.attention, tuple) else config.attention
    config = dataclasses.replace(
        config,
        width=24,
        depth=2,
        heads=2,
        mlp=32,
        attention=attention,
        image=(2 * config.pixels, 3 * config.pixels),
    )
    if config.stages:
        config = dataclasses.replace(config, stages=(1, 1, 1), stem_width=8, groups=4)
    model = plain.model(config, classes=10, **options)
    keras.utils.set_random_seed(1)
    model.layers[-2].kernel.assign(keras.random.normal(model.layers[-2].kernel.shape))
    return model


FAMILIES = {
    "ViT_B16": {},
    "ViT_B32": {"classifier": "map"},
    "DeepViT_S": {},
    "DINOv2_S14_reg4": {"dtype": "mixed_float16"},
    "DINOv2_g14": {"dtype": "mixed_bfloat16"},
    "R50_B16": {},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_files_agree_with_the_model(name, tmp_path):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    pytest.importorskip("ai_edge_litert")
    model = tiny(name, **FAMILIES[name])
    images = np.random.default_rng(0).uniform(0, 255, (4, *model.input_shape[1:]))
    expected = outputs_of(export.float32_copy(model)).predict(images, verbose=0)
    for write, run, path in (
        (export.onnx, run_onnx, tmp_path / "model.onnx"),
        (export.litert, run_litert, tmp_path / "model.tflite"),
    ):
        write(model, path)
        run = run(path)
        for count in (1, 4):
            found = run(images[:count])
            assert set(found) == {"logits", "probabilities"}
            for key, value in found.items():
                np.testing.assert_allclose(value, expected[key][:count], atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.tflite"]


def test_what_an_onnx_file_says(tmp_path):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("tf2onnx")
    export.onnx(tiny("ViT_B16"), tmp_path / "model.onnx", [f"name {k}" for k in range(10)])
    proto = onnx.load(tmp_path / "model.onnx")
    assert {entry.domain: entry.version for entry in proto.opset_import}[""] == 18
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    assert metadata["class_names"].splitlines()[9] == "name 9"
    assert '"size": [32, 48]' in metadata["recipe"]


@pytest.fixture(scope="module")
def shipped():
    return keras_vit.ViT_Mini4(weights="fashion-mnist")


@pytest.fixture(scope="module")
def expected(shipped):
    """Its probabilities for the 1,000 pictures that come with the package."""
    return shipped.predict(shipped_pictures(1000), batch_size=250, verbose=0)


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """A folder of 200 training pictures."""
    folder = tmp_path_factory.mktemp("calibration")
    with np.load(registry.__file__.replace("registry.py", "data/fashion_mnist.npz")) as file:
        for k, picture in enumerate(file["train_images"][:200]):
            Image.fromarray(picture).save(folder / f"{k:03}.png")
    return folder


@pytest.mark.parametrize(
    "precision, difference, share",
    [("float16", 1e-2, 1.0), ("dynamic-int8", 0.2, 0.99), ("int8", 1.0, 0.97)],
)
def test_smaller_files(precision, difference, share, shipped, expected, calibration, tmp_path):
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "model.tflite"
    folder = calibration if precision == "int8" else None
    export.litert(shipped, path, precision, folder)
    found = run_litert(path)(shipped_pictures(1000))["probabilities"]
    assert (found.argmax(-1) == expected.argmax(-1)).mean() >= share
    assert np.abs(found - expected).max() <= difference
    assert path.stat().st_size < {"float16": 1.2e6}.get(precision, 0.8e6)
    assert b"Flex" not in path.read_bytes()


def test_a_model_that_is_too_large_for_onnx(monkeypatch, tmp_path):
    monkeypatch.setattr(onnx_file, "LIMIT", 10_000)
    with pytest.raises(ValueError, match=r"at most 10000 bytes. Received: .*Export it as a Saved"):
        export.onnx(tiny("ViT_B16"), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_litert_options(shipped, calibration, tmp_path):
    path = tmp_path / "model.tflite"
    with pytest.raises(ValueError, match="measured on a folder of pictures"):
        export.litert(shipped, path, "int8")
    with pytest.raises(ValueError, match="measured on a folder of pictures"):
        export.litert(shipped, path, "float16", calibration)
    with pytest.raises(ValueError, match="Unknown precision. Received: precision='int4'"):
        export.litert(shipped, path, "int4")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no picture to calibrate with"):
        export.litert(shipped, path, "int8", tmp_path / "empty")
    assert not path.exists()


def test_a_missing_extra(shipped, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    with pytest.raises(ImportError, match=r'pip install "keras-vit-zoo\[onnx\]"'):
        export.onnx(shipped, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16", "float16"])
def test_float32_copy(dtype):
    model = tiny("DeepViT_S", dtype=dtype)
    copy = export.float32_copy(model)
    assert {layer.dtype_policy.name for layer in copy.layers} == {"float32"}
    assert {weight.dtype for weight in copy.weights} == {"float32"}
    for ours, theirs in zip(copy.weights, model.weights, strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs).astype("float32"))
    images = np.random.default_rng(0).uniform(0, 255, (2, *model.input_shape[1:]))
    found, expected = (m.predict(images, verbose=0) for m in (copy, model))
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert export.float32_copy(copy) is copy


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method:UserWarning")
def test_float32_copy_of_a_quantised_model():
    model = tiny("ViT_B16")
    model.quantize("int8")
    with pytest.raises(ValueError, match="A quantised model cannot be brought back"):
        export.float32_copy(model)


def test_float32_copy_of_an_unregistered_layer():
    class Unknown(keras.layers.Layer):
        pass

    model = keras.Sequential([keras.Input((4,)), Unknown(dtype="mixed_bfloat16")])
    with pytest.raises(ValueError, match="register_keras_serializable"):
        export.float32_copy(model)
