"""The builder of the plain families: arguments, messages, training, saving."""

import copy
import json
import math
import pathlib
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
from golden_files import run
from keras import ops

import keras_vit
from keras_vit.models import plain

PATHS = pathlib.Path(__file__).parent / "paths"

TINY = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(32, 32))
# One row for every part and number in which plain models differ.
ROWS = {
    "plain": ({}, {}),
    "gap": ({"tokens": (), "classifier": "gap"}, {}),
    "average": ({"classifier": "avg"}, {}),
    "map": ({"tokens": (), "classifier": "map"}, {}),
    "linear4": ({"classifier": "linear4", "depth": 4}, {}),
    "registers": ({"registers": 4, "positioned_tokens": 1, "layer_scale": 1e-5}, {}),
    "swiglu": ({"feed_forward": plain.swiglu, "activation": "gelu"}, {}),
    "representation": ({"representation_size": 12}, {}),
    "rows_and_columns": ({"positions": "learned-2d"}, {}),
    "sincos": ({"positions": "sincos-2d"}, {}),
    "no_positions": ({"positions": "none"}, {}),
    "tokens": ({}, {"include_top": False}),
    "pooled": ({}, {"include_top": False, "pooling": "avg"}),
    "wide": ({}, {"input_shape": (16, 40, 3)}),
    "grey": ({}, {"input_shape": (32, 32, 1)}),
    "re_attention": ({"attention": plain.re_attention, "scale_adjustment": 0.5}, {}),
    "conv_stem": (
        {
            "patch": 4,
            "stem": plain.conv_stem,
            "stem_stride": 2,
            "attention_normalization": "none",
            "attention": plain.runs((plain.self_attention, 1), (plain.re_attention, 1)),
        },
        {},
    ),
    "hybrid": (
        {
            "patch": 1,
            "stem": plain.residual_stem,
            "stem_stride": 8,
            "stages": (2, 1),
            "stem_width": 4,
            "groups": 2,
        },
        {},
    ),
    "hybrid_root": (
        {
            "patch": 4,
            "stem": plain.residual_stem,
            "stem_stride": 4,
            "stages": (),
            "stem_width": 4,
            "groups": 2,
            "tokens": (),
            "classifier": "gap",
        },
        {},
    ),
    "dropout": ({}, {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "drop_path_rate": 0.1}),
}


@pytest.fixture
def build(declare):
    def function(row="plain", **arguments):
        numbers, defaults = ROWS[row]
        builder = declare(f"Tiny_{row}", plain.dataclasses.replace(TINY, **numbers), classes=5)
        return builder(**{"weights": None, "name": "tiny", **defaults, **arguments})

    return function


def randomize(model):
    """Gives every variable other values than its initial ones; variances are positive."""
    generator = np.random.default_rng(0)
    for variable in model.weights:
        values = generator.normal(0.0, 0.2, variable.shape)
        variable.assign(np.abs(values) if variable.name == "moving_variance" else values)


def images_for(model, batch=3):
    shape = model.input_shape[1:]
    return np.random.default_rng(1).uniform(0, 255, (batch, *shape)).astype("float32")


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pooling, shape",
    [
        (None, (None, 17, 16)),
        ("token", (None, 16)),
        ("avg", (None, 16)),
        ("max", (None, 16)),
        ("map", (None, 16)),
    ],
)
def test_features(build, pooling, shape):
    model = build(include_top=False, pooling=pooling)
    assert model.output_shape == shape
    randomize(model)
    images = images_for(model)
    got = run(model, images)
    if pooling in ("token", "avg", "max"):
        norm = model.get_layer("tiny_encoder_norm").output
        tokens = keras.Model(model.inputs, norm).predict(images, verbose=0)
        want = {
            "token": tokens[:, 0],
            "avg": tokens[:, 1:].mean(axis=1),
            "max": tokens[:, 1:].max(axis=1),
        }
        np.testing.assert_allclose(got, want[pooling], atol=1e-6)


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_classifier_activation(build, activation):
    model = build(classifier_activation=activation)
    randomize(model)
    images = images_for(model)
    logits = keras.Model(model.inputs, model.get_layer("tiny_head").output)
    logits = run(logits, images)
    want = keras.activations.get(activation)(ops.convert_to_tensor(logits))
    np.testing.assert_allclose(run(model, images), want, atol=1e-6)


@pytest.mark.parametrize("classes", [1, 5])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_batch_of_one_and_a_single_class(build, classes, batch):
    model = build(classes=classes, classifier_activation=None)
    assert run(model, images_for(model, batch)).shape == (batch, classes)


def test_the_head_starts_at_zero(build):
    model = build(classifier_activation=None)
    assert not run(model, images_for(model)).any()


def test_input_tensor_keeps_what_comes_before(build):
    pixels = keras.Input((64, 64, 3), name="pixels")
    x = keras.layers.Resizing(32, 32, name="shrink")(pixels)
    model = build(input_tensor=x)
    assert model.inputs[0] is pixels
    assert model.get_layer("shrink") is not None
    assert run(model, np.zeros((2, 64, 64, 3))).shape == (2, 5)


def test_two_models_in_one_graph(build):
    pixels = keras.Input((32, 32, 3), name="pixels")
    first = build(input_tensor=pixels, name="first")
    second = build("gap", input_tensor=pixels, name="second")
    both = keras.Model(pixels, keras.layers.Average()([first.output, second.output]))
    assert len({v.path for v in both.weights}) == len(both.weights)
    assert run(both, np.zeros((2, 32, 32, 3))).shape == (2, 5)


def test_the_input_is_named_images(build):
    model = build()
    assert model.inputs[0].name == "images"


def test_preprocessing_inside_or_outside(build):
    inside = build(name="a")
    randomize(inside)
    images = images_for(inside)
    without = build("gap", include_preprocessing=False)
    assert "normalize" not in " ".join(layer.name for layer in without.layers)
    scaled = keras_vit.vit.preprocess_input(images, include_preprocessing=False)
    tail = keras.Model(inside.get_layer("a_normalize").output, inside.output)
    np.testing.assert_allclose(run(tail, scaled), run(inside, images), atol=1e-5)
    np.testing.assert_array_equal(images, images_for(inside))
    assert keras_vit.vit.preprocess_input(images) is images


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32", "float64"])
def test_any_real_dtype(build, dtype):
    model = build()
    randomize(model)
    images = np.floor(images_for(model))
    want = run(model, images.astype("float32"))
    np.testing.assert_array_equal(run(model, images.astype(dtype)), want)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"input_shape": (30, 32, 3)},
            "image height must be a multiple of the patch size 8. "
            "Received: height=30. Nearest valid height: 24 or 32",
        ),
        ({"input_shape": (32, 33, 3)}, "width=33. Nearest valid width: 32 or 40"),
        ({"input_shape": (7, 32, 3)}, "height=7. Nearest valid height: 8."),
        ({"input_shape": (32, 32)}, r"must be a tuple .height, width, channels.*\(32, 32\)"),
        ({"input_shape": (32, 0, 3)}, r"must be a tuple .*\(32, 0, 3\)"),
        ({"input_shape": (32, 32, None)}, "must be a tuple"),
        ({"pooling": "cls"}, "unknown pooling. Received: pooling='cls'. Available: None, 'token'"),
        ({"classifier": "mean"}, "unknown classifier. Received: classifier='mean'"),
        ({"positions": "3d"}, "unknown positions. Received: positions='3d'"),
        ({"classes": 0}, "classes must be a positive integer. Received: classes=0"),
        ({"classes": 2.5}, "classes must be a positive integer. Received: classes=2.5"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\). Received: dropout_rate=1.0"),
        ({"drop_path_rate": -0.1}, "drop_path_rate must be in"),
        ({"patch_dropout_rate": 2}, "patch_dropout_rate must be in"),
        (
            {"weights": "imagenet"},
            "should be None, a named set .*weights='imagenet'. Named sets: none",
        ),
        ({"weights": "no/such/file.npz"}, "existing checkpoint file. Received: weights='no/such"),
    ],
)
def test_messages(build, arguments, message):
    with pytest.raises(ValueError, match=f"Tiny_plain.*{message}"):
        build(**arguments)


def test_a_token_is_not_taken_where_there_is_none(build):
    with pytest.raises(ValueError, match="pooling='token' needs a class token.*pooling='avg'"):
        build("gap", include_top=False, pooling="token")


def test_a_linear_head_keeps_the_class_token_that_it_reads():
    tokens = {
        classifier: plain.model(TINY, classifier=classifier).get_layer("vit_patch_encoder").tokens
        for classifier in ("token", "linear", "gap", "avg", "avgmax", "map")
    }
    assert [name for name, found in tokens.items() if found == ("class",)] == ["token", "linear"]


def test_four_blocks_are_needed_for_linear4(build):
    with pytest.raises(
        ValueError, match="linear4.*reads the last 4 blocks. Received: a model of 2"
    ):
        build(classifier="linear4")


def test_channels_first_is_refused(build):
    keras.config.set_image_data_format("channels_first")
    with pytest.raises(ValueError, match="channels_last.*set_image_data_format"):
        build()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16"])
def test_scores_are_float32_under_every_policy(build, policy):
    global_policy = build("gap")
    model = build("plain", dtype=policy)
    randomize(model)
    output = model(images_for(model))
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    assert np.isfinite(np.array(output)).all()
    assert model.get_layer("tiny_block_0").compute_dtype == policy.removeprefix("mixed_")
    assert global_policy.get_layer("tiny_block_0").compute_dtype == "float32"


# Image sizes --------------------------------------------------------------------------------------


def test_dynamic_size_gives_what_a_static_model_gives(build, tmp_path):
    model = build()
    randomize(model)
    model.save_weights(tmp_path / "w.weights.h5")
    dynamic = build("registers", input_shape=(None, None, 3))
    assert dynamic.output_shape == (None, 5)
    dynamic = keras_vit.registry.get_variant("Tiny_plain").function(
        weights=tmp_path / "w.weights.h5", input_shape=(None, None, 3)
    )
    static = keras_vit.registry.get_variant("Tiny_plain").function(
        weights=tmp_path / "w.weights.h5", input_shape=(16, 40, 3)
    )
    images = images_for(static)
    want = static.predict(images, verbose=0)
    np.testing.assert_allclose(dynamic.predict(images, verbose=0), want, atol=1e-5)
    images = images_for(model)
    np.testing.assert_allclose(
        dynamic.predict(images, verbose=0), model.predict(images, verbose=0), atol=1e-6
    )
    compiled = keras.models.clone_model(dynamic)
    compiled.set_weights(dynamic.get_weights())
    compiled.compile(jit_compile=True)
    np.testing.assert_allclose(compiled.predict(images_for(static), verbose=0), want, atol=1e-5)


@pytest.mark.parametrize("row", ["plain", "rows_and_columns", "sincos"])
def test_dynamic_sizes_train(build, row):
    model = build(row, input_shape=(None, None, 3))
    model.compile("sgd", "sparse_categorical_crossentropy")
    for size in ((32, 32), (16, 48)):
        history = model.fit(np.zeros((2, *size, 3)), np.array([0, 1]), verbose=0)
        assert math.isfinite(history.history["loss"][0])


def test_a_wrong_dynamic_size_is_named(build):
    model = build(input_shape=(None, None, 3))
    with pytest.raises(Exception, match="height must be a multiple of the patch size 8.*height=30"):
        model(np.zeros((1, 30, 32, 3)))


def test_positions_matter(build):
    model = build(classifier_activation=None)
    randomize(model)
    images = images_for(model)
    before = run(model, images)
    encoder = model.get_layer("tiny_patch_encoder")
    encoder.own["positions"].assign(np.zeros(encoder.own["positions"].shape))
    assert np.abs(run(model, images) - before).max() > 1e-3


# Training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_every_parameter_receives_a_gradient(build, row):
    model = build(row)
    randomize(model)
    before = [np.array(v) for v in model.trainable_weights]
    model.compile(keras.optimizers.SGD(10.0), "mse")
    images = images_for(model, 8)
    target = np.random.default_rng(2).normal(size=(8, *model.output_shape[1:]))
    model.fit(images, target, batch_size=8, verbose=0)
    # Softmax over keys does not see what all keys share, nor batch normalization what all positions
    # share: these biases have no gradient at all.
    for variable, old in zip(model.trainable_weights, before, strict=True):
        if not variable.path.endswith(("key/bias", "mixing_bias")):
            assert np.abs(np.array(variable) - old).max() > 0, variable.path


def test_gradient_checkpointing_changes_nothing_but_memory(build):
    results = []
    for flag in (False, True):
        keras.utils.set_random_seed(0)
        model = keras_vit.ViT_Mini4(
            weights=None, gradient_checkpointing=flag, input_shape=(8, 8, 3)
        )
        randomize(model)
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        model.fit(images_for(model, 4), np.arange(4), verbose=0)
        results.append(model.get_weights())
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_xla_agrees(build):
    model = build("registers")
    randomize(model)
    images = images_for(model)
    want = model.predict(images, verbose=0)
    model.compile("sgd", "mse", jit_compile=True)
    np.testing.assert_allclose(model.predict(images, verbose=0), want, atol=1e-5)
    assert math.isfinite(model.train_on_batch(images, np.zeros((3, 5))))


def test_lora_trains_few_and_saves_as_a_plain_model(build, tmp_path):
    model = build("plain")
    randomize(model)
    for layer in model.layers:
        layer.trainable = (
            isinstance(layer, keras_vit.layers.TransformerBlock) or "head" in layer.name
        )
    for i in range(2):
        block = model.get_layer(f"tiny_block_{i}")
        for part in (
            block.attention_norm,
            block.mlp_norm,
            block.mlp,
            block.attention.key,
            block.attention.projection,
        ):
            part.trainable = False
        for part in (block.attention.query, block.attention.value):
            part.enable_lora(4)
            part.bias.trainable = False
    names = {v.path.split("/", 1)[1] for v in model.trainable_weights}
    assert names == {
        f"attention/{part}/lora_kernel_{ab}" for part in ("query", "value") for ab in "ab"
    } | {"kernel", "bias"}
    model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    images = images_for(model)
    model.fit(images, np.array([0, 1, 2]), verbose=0)
    want = run(model, images)
    model.save_weights(tmp_path / "merged.weights.h5")
    fresh = keras_vit.registry.get_variant("Tiny_plain").function(weights=None)
    fresh.load_weights(tmp_path / "merged.weights.h5")
    np.testing.assert_allclose(run(fresh, images), want, atol=1e-6)
    with pytest.raises(ValueError, match="lora is already enabled"):
        model.get_layer("tiny_block_0").attention.query.enable_lora(4)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_int8_weights_go_into_a_quantized_model(build, tmp_path):
    model = build()
    randomize(model)
    images = images_for(model)
    exact = run(model, images)
    model.quantize("int8")
    want = run(model, images)
    assert 0 < np.abs(want - exact).max() < 0.1
    model.save_weights(tmp_path / "int8.weights.h5")
    again = keras_vit.registry.get_variant("Tiny_plain").function(weights=None)
    again.quantize("int8")
    again.load_weights(tmp_path / "int8.weights.h5")
    np.testing.assert_array_equal(run(again, images), want)


# Saving -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_config_round_trip(build, row):
    model = build(row)
    config = model.get_config()
    again = keras.Model.from_config(copy.deepcopy(config))
    assert json.loads(json.dumps(again.get_config())) == json.loads(json.dumps(config))
    paths = [(v.path, tuple(v.shape)) for v in model.weights]
    assert [(v.path, tuple(v.shape)) for v in again.weights] == paths
    assert len(set(paths)) == len(paths)


@pytest.mark.parametrize("row", ROWS)
def test_variable_paths_are_a_file_format(build, row, request):
    lines = [f"{v.path} {tuple(int(n) for n in v.shape)}" for v in build(row).weights]
    file = PATHS / f"{row}.txt"
    if request.config.getoption("--update-paths"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
    assert file.read_text().splitlines() == lines


SERVED = ("plain",)  # also as SavedModels, of which tests/export has the other families
SCRIPT = """
import json, sys
import keras
import numpy as np
import keras_vit

folder, rows, served = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
for row in rows:
    x = np.load(f"{folder}/{row}_x.npy")
    first = keras.models.load_model(f"{folder}/{row}.keras")
    first.save(f"{folder}/{row}_second.keras")
    second = keras.models.load_model(f"{folder}/{row}_second.keras")
    third = keras.Model.from_config(first.get_config())
    third.load_weights(f"{folder}/{row}.weights.h5")
    results = [keras.ops.convert_to_numpy(m(x, training=False)) for m in (first, second, third)]
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf
        if row in served:
            loaded = tf.saved_model.load(f"{folder}/{row}_saved_model")
            results.append(loaded.serve(x).numpy())
    np.save(f"{folder}/{row}_y.npy", results)
    same = all(
        np.array_equal(a, b) and a.path == b.path
        for a, b in zip(first.weights, second.weights, strict=True)
    )
    assert same, row
"""


def test_reload_in_a_fresh_process(build, tmp_path):
    wanted = {}
    for row in ROWS:
        model = build(row)
        randomize(model)
        images = images_for(model)
        np.save(tmp_path / f"{row}_x.npy", images)
        model.save(tmp_path / f"{row}.keras")
        model.save_weights(tmp_path / f"{row}.weights.h5")
        if row in SERVED and keras.backend.backend() == "tensorflow":
            model.export(tmp_path / f"{row}_saved_model", verbose=False)
        wanted[row] = ops.convert_to_numpy(model(images, training=False))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    command += [json.dumps(list(rows)) for rows in (ROWS, SERVED)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    for row, want in wanted.items():
        results = np.load(tmp_path / f"{row}_y.npy")
        for got in results[:3]:
            np.testing.assert_array_equal(got, want, err_msg=row)
        for got in results[3:]:
            np.testing.assert_allclose(got, want, atol=1e-5, err_msg=row)


def test_without_the_import_the_error_names_the_package(build, tmp_path):
    build().save(tmp_path / "m.keras")
    code = f"import keras; keras.models.load_model(r'{tmp_path / 'm.keras'}')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode != 0
    assert "keras_vit" in run.stderr


def test_import_is_light():
    code = textwrap.dedent(
        """
        import os, sys, logging
        os.environ["KERAS_BACKEND"] = "jax"
        before, handlers = dict(os.environ), list(logging.getLogger().handlers)
        import keras
        policy = keras.config.dtype_policy().name
        import keras_vit
        assert "tensorflow" not in sys.modules
        assert dict(os.environ).items() >= before.items()
        assert keras.config.dtype_policy().name == policy
        assert logging.getLogger().handlers == handlers
        """
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
