"""SavedModels: in Python, and through the C API."""

import dataclasses
import io
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from picture_files import bad, encode, smooth

from keras_vit import export, registry
from keras_vit.export import servable, signatures
from keras_vit.images import load_image
from keras_vit.models import plain
from keras_vit.preprocessing import prepare, recipe_of

tf = pytest.importorskip("tensorflow")
if keras.config.backend() != "tensorflow":
    pytest.skip("The export runs on TensorFlow.", allow_module_level=True)

NAMES = [f"name {k}" for k in range(10)]


def with_spread_head(model):
    """The head starts from zeros: every class would be equally likely."""
    keras.utils.set_random_seed(3)
    for layer in model.layers:
        if layer.name.endswith("_head"):
            layer.kernel.assign(keras.random.normal(layer.kernel.shape, stddev=0.3))
    return model


def tiny_model(**options):
    config = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(32, 40))
    return with_spread_head(plain.model(config, "tiny", **{"classes": 10, **options}))


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return export.saved_model(model, tmp_path_factory.mktemp("served") / "tiny", NAMES)


@pytest.fixture(scope="module")
def files():
    photo = smooth(60, 90)
    return [encode(photo, "JPEG"), encode(smooth(33, 32), "PNG"), encode(smooth(80, 50), "WEBP")]


@pytest.fixture(scope="module")
def pixels(model, files):
    return np.stack([prepare(load_image(io.BytesIO(file)), recipe_of(model)) for file in files])


def callable_with_arrays(functions):
    return {
        name: lambda value, f=function: {k: v.numpy() for k, v in f(tf.constant(value)).items()}
        for name, function in functions.items()
    }


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(str(folder))


@pytest.fixture(scope="module")
def served(loaded):
    return callable_with_arrays(loaded.signatures)


def traced(model, labels=NAMES, **options):
    """The signatures of another model, without writing them."""
    options = {"jit_compile": False, "max_pixels": 1_000_000, **options}
    return callable_with_arrays(signatures.functions(model, labels, **options))


def test_every_signature_agrees_with_the_model(model, served, pixels):
    images = pixels.astype("float32")
    probabilities = model.predict(images, verbose=0)
    logits = keras.Model(model.input, model.layers[-2].output).predict(images, verbose=0)
    for name, value in (("serving_default", images), ("serving_uint8", pixels)):
        found = served[name](value)
        assert set(found) == {"logits", "probabilities"}
        np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-6)
        np.testing.assert_allclose(found["logits"], logits, atol=1e-6)

    tokens = keras.Model(model.input, model.get_layer("tiny_encoder_norm").output)
    found = served["features"](images)
    np.testing.assert_allclose(found["tokens"], tokens.predict(images, verbose=0), atol=1e-6)
    np.testing.assert_allclose(found["pooled"], found["tokens"][:, 0], atol=1e-6)

    attention = served["attention"](images)["attention"]
    assert attention.shape == (3, 2, 2, 4, 5)
    block = model.get_layer("tiny_block_1")
    before = keras.Model(model.input, block.input)(images)
    _, maps = block(before, return_attention=True)
    np.testing.assert_allclose(
        attention[:, 1], np.array(maps)[:, :, 0, 1:].reshape(3, 2, 4, 5), atol=1e-6
    )


def test_files_are_classified_as_in_python(model, served, files, pixels):
    found = served["serving_bytes"](files)
    expected = model.predict(pixels.astype("float32"), verbose=0)
    assert found["status"].tolist() == [b"ok"] * 3
    assert np.abs(found["probabilities"] - expected).max() < 0.01  # a grey level here and there
    order = np.argsort(-expected, axis=1)[:, 0]
    assert found["indices"][:, 0].tolist() == order.tolist()
    assert found["labels"][:, 0].tolist() == [NAMES[k].encode() for k in order]
    assert found["scores"].shape == (3, 5)
    assert np.all(np.diff(found["scores"]) <= 0)
    # one picture that needs no resizing: nothing is left to differ
    exact = encode(pixels[0], "PNG")
    single = served["serving_bytes"]([exact])["probabilities"]
    np.testing.assert_allclose(single, expected[:1], atol=1e-6)


def test_bad_files_have_no_scores(served, files):
    wrong = bad()
    classify = served["serving_bytes"]
    found = classify([*(file for file, _ in wrong.values()), files[0]])
    assert [text.decode() for text in found["status"]] == [*(s for _, s in wrong.values()), "ok"]
    for name in ("scores", "probabilities", "logits"):
        assert np.all(found[name][:-1] == 0)
        assert np.any(found[name][-1] != 0)
    assert set(found["labels"][:-1].ravel()) == {b""}
    np.testing.assert_allclose(found["scores"][-1:], classify(files[:1])["scores"], atol=1e-6)


def test_no_pictures_at_all(served):
    assert served["serving_default"](np.zeros((0, 32, 40, 3), "float32"))["logits"].shape == (0, 10)
    assert served["serving_bytes"](np.zeros(0, object))["labels"].shape == (0, 5)
    assert served["attention"](np.zeros((0, 32, 40, 3), "float32"))["attention"].shape[0] == 0


def test_what_else_is_in_the_folder(model, folder):
    assets = {path.name: path.read_text() for path in (folder / "assets").iterdir()}
    assert assets["class_names.txt"].splitlines() == NAMES
    assert json.loads(assets["recipe.json"]) == {
        "size": [32, 40],
        "resize": "shorter-side",
        "crop_fraction": 1.0,
        "interpolation": "bicubic",
        "antialias": True,
        "crop_offset": "round",
        "fill": [0, 0, 0],
    }
    graph = (folder / "saved_model.pb").read_bytes()
    assert b"_XlaMustCompile" not in graph and b"jit_compile" not in graph
    assert b"DecodeWebP" not in graph  # unknown to older servers
    assert [path.name for path in folder.parent.iterdir()] == ["1"]


def test_the_warm_up_requests_are_those_of_the_server(folder, served):
    prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    path = folder / "assets.extra" / "tf_serving_warmup_requests"
    names = []
    for record in tf.data.TFRecordDataset(str(path)):
        log = prediction_log_pb2.PredictionLog.FromString(record.numpy())
        request = log.predict_log.request
        assert request.model_spec.name == "tiny"
        ((name, tensor),) = request.inputs.items()
        assert name == ("image_bytes" if "bytes" in request.model_spec.signature_name else "images")
        found = served[request.model_spec.signature_name](tf.make_ndarray(tensor))
        assert found.get("status", [b"ok"])[0] == b"ok"
        names.append(request.model_spec.signature_name)
    assert set(names) == set(served)


def test_the_c_api_agrees(folder, loaded, files, pixels, tmp_path):
    inputs, expected, described = {}, {}, {}
    values = {"images": pixels.astype("float32"), "image_bytes": np.array([*files, b"no"], object)}
    for name, function in loaded.signatures.items():
        (argument,) = function.structured_input_signature[1]
        value = pixels if name == "serving_uint8" else values[argument]
        inputs[f"{name}/{argument}"] = value
        expected |= {f"{name}/{k}": v.numpy() for k, v in function(tf.constant(value)).items()}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(folder))
    for name, signature in meta.signature_def.items():
        if name in loaded.signatures:
            described[name] = [
                {key: info.name for key, info in side.items()}
                for side in (signature.inputs, signature.outputs)
            ]
    (tmp_path / "signatures.json").write_text(json.dumps(described))
    np.savez(tmp_path / "inputs.npz", **inputs)
    script = pathlib.Path(__file__).parents[1] / "c_api.py"
    paths = [tmp_path / name for name in ("signatures.json", "inputs.npz", "outputs.npz")]
    done = subprocess.run(
        [sys.executable, script, folder, *paths], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = np.load(paths[-1])
    assert set(found.files) == set(expected)
    for key, value in expected.items():
        if value.dtype.kind in "fi":
            np.testing.assert_allclose(found[key], value, atol=1e-5, err_msg=key)
        else:
            assert found[key].tolist() == value.tolist(), key


def test_versions(model, folder, tmp_path):
    assert servable.versions(folder.parent) == [1]
    with pytest.raises(ValueError, match="This version exists already.*tiny/1"):
        export.saved_model(model, folder.parent, NAMES, version=1)
    (tmp_path / "9").mkdir()
    (tmp_path / "10").mkdir()
    (tmp_path / "notes").mkdir()
    assert servable.next_folder(tmp_path, None) == tmp_path / "11"
    assert servable.next_folder(tmp_path / "new", None) == tmp_path / "new" / "1"
    for version in (0, -1, "2"):
        with pytest.raises(ValueError, match="`version` must be a positive integer"):
            export.saved_model(model, tmp_path, NAMES, version=version)


def test_a_failure_leaves_nothing(model, tmp_path, monkeypatch):
    def write(folder, *_):
        assert folder.is_dir()
        raise OSError("disk full")

    monkeypatch.setattr(servable.warm_up, "write", write)
    with pytest.raises(OSError, match="disk full"):
        export.saved_model(model, tmp_path, NAMES)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        export.saved_model(model, tmp_path / "file" / "model", NAMES)


def test_what_cannot_be_served(model, tmp_path):
    with pytest.raises(ValueError, match="one name a class. Received: 2 names for the 10 classes"):
        export.saved_model(model, tmp_path, ["a", "b"])
    with pytest.raises(ValueError, match="include_preprocessing=True"):
        export.saved_model(tiny_model(include_preprocessing=False), tmp_path)
    with pytest.raises(ValueError, match="take 3 channels"):
        export.saved_model(tiny_model(input_shape=(32, 32, 1)), tmp_path)
    dense = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"must take images \(B, H, W, 3\)"):
        export.saved_model(dense, tmp_path)
    plain_cnn = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3)])
    with pytest.raises(ValueError, match="hold a Normalize"):
        export.saved_model(plain_cnn, tmp_path)
    with pytest.raises(ValueError, match="must be built"):
        export.saved_model(keras.Sequential([keras.layers.Dense(2)]), tmp_path)
    with pytest.raises(ValueError, match="must be a keras.Model"):
        export.saved_model("model.keras", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_half_precision_and_any_size():
    half = tiny_model(dtype="mixed_bfloat16", input_shape=(None, None, 3))
    served = traced(half)
    images = np.random.default_rng(0).uniform(0, 255, (2, 48, 64, 3)).astype("float32")
    found = served["serving_default"](images)
    np.testing.assert_allclose(found["probabilities"], half.predict(images, verbose=0), atol=1e-5)
    for name in ("serving_default", "features", "attention"):
        assert {value.dtype.name for value in served[name](images).values()} == {"float32"}
    assert served["attention"](images)["attention"].shape == (2, 2, 2, 6, 8)
    assert served["serving_bytes"]([encode(smooth(50, 50), "PNG")])["status"] == [b"ok"]


def test_a_model_without_a_head():
    model = tiny_model(include_top=False, pooling="avg", classifier="gap")
    assert servable.labels_of(model, None) is None
    served = traced(model, None)
    images = np.zeros((2, 32, 40, 3), "float32")
    found = served["serving_default"](images)
    assert set(found) == {"features"} and found["features"].shape == (2, 16)
    assert set(served["serving_bytes"]([b""])) == {"features", "status"}
    found = served["features"](images)
    assert found["tokens"].shape == (2, 20, 16) and found["pooled"].shape == (2, 16)
    assert "attention" not in served  # no class token


def test_logits_of_a_model_that_ends_in_them(pixels):
    logits = signatures.outputs_of(tiny_model(classifier_activation=None))
    found = logits(pixels.astype("float32"))
    softmax = keras.ops.softmax(found["logits"])
    np.testing.assert_allclose(found["probabilities"], softmax, atol=1e-6)


def test_a_fine_tuned_model_around_ours(pixels):
    inner = tiny_model(include_top=False, pooling="token")
    outer = keras.Sequential([inner, keras.layers.Dense(3, activation="softmax")])
    assert servable.check_model(outer) == recipe_of(outer)
    served = traced(outer, servable.labels_of(outer, ["a", "b", "c"]))
    images = pixels.astype("float32")
    found = served["serving_default"](images)
    np.testing.assert_allclose(found["probabilities"], outer.predict(images, verbose=0), atol=1e-6)
    assert served["serving_bytes"](np.zeros(0, object))["labels"].shape == (0, 3)
    assert "features" not in served


def test_xla_on_request(model, pixels):
    images = pixels.astype("float32")
    functions = signatures.functions(model, NAMES, jit_compile=True, max_pixels=100)
    assert "_XlaMustCompile" in str(functions["serving_default"].graph.as_graph_def())
    found = functions["serving_default"](tf.constant(images))["probabilities"]
    np.testing.assert_allclose(found, model.predict(images, verbose=0), atol=1e-5)


@pytest.mark.parametrize("name", ["DeepViT_S", "DINOv2_S14_reg4"])
def test_other_families(name):
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
    model = with_spread_head(plain.model(config, classes=10))
    images = np.random.default_rng(0).uniform(0, 255, (2, *config.image, 3)).astype("float32")
    served = traced(model)
    found = served["serving_default"](images)["probabilities"]
    np.testing.assert_allclose(found, model.predict(images, verbose=0), atol=1e-6)
    assert served["attention"](images)["attention"].shape == (2, 2, 2, 2, 3)


def test_labels_of_imagenet():
    config = plain.Config(patch=8, width=8, depth=1, heads=1, mlp=8, image=(8, 8))
    labels = servable.labels_of(plain.model(config, classes=1000), None)
    assert labels[:1] == ["tench"] and len(labels) == 1000
    assert servable.labels_of(tiny_model(), None)[3] == "class 3"
    pairs = [(f"n{k}", name) for k, name in enumerate(NAMES)]
    assert servable.labels_of(tiny_model(), pairs) == NAMES


def test_the_backend_is_tensorflow(model, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow"):
        export.saved_model(model, tmp_path)
