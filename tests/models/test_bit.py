"""Big Transfer: the official numbers, files, sizes, dtypes, training."""

import dataclasses
import json
import math
import pathlib

import keras
import numpy as np
import pytest
from golden_files import Golden, run, write_checkpoint
from keras import ops

import keras_vit
from keras_vit import registry
from keras_vit.models import residual
from keras_vit.weights import load

PATHS = pathlib.Path(__file__).parent / "paths"
TINY = residual.Config(stages=(2, 1), filters=(4, 8), stem_width=8, groups=4, image=(32, 32))
GOLDENS = {
    "G01": residual.Config((2, 1, 1), (8, 16, 32), 16, groups=8),
    "G02": residual.Config((1, 1), (32, 32), 32),
}
OURS = {
    "stem_conv": "root_conv",
    "stem_pool": "root_pool",
    "norm": "relu",
    "pre_logits": "pool",
    "logits": "head",
}


@pytest.fixture
def bit(declare):
    """Declares and builds: `bit(config, **arguments)`."""

    def function(config=TINY, **arguments):
        builder = declare(f"Bit{len(registry.list_models())}", config, build=residual.build)
        return builder(**{"weights": None, "name": "bit", "classes": 7, **arguments})

    return function


def randomized(model):
    generator = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(generator.normal(0.0, 0.2, variable.shape))
    return model


def images_for(model, size=(32, 32), batch=2):
    channels = model.input_shape[-1]
    return np.random.default_rng(1).uniform(0, 255, (batch, *size, channels)).astype("float32")


def compare(golden, model):
    """Largest difference of every map, feature and score, over max(1, largest value)."""
    x, want = golden.inputs[""], dict(golden.outputs)
    names = {layer.name.removeprefix("bit_"): layer for layer in model.layers}
    wanted = {ours: want.pop(theirs) for theirs, ours in OURS.items()}
    stages = {n: layer for n, layer in names.items() if n.startswith("stage_")}
    outputs = {n: names[n].output for n in wanted} | {n: s.input for n, s in stages.items()}
    found = run(keras.Model(model.inputs, outputs), x)
    for s, stage in enumerate(stages.values()):
        x = found.pop(stage.name.removeprefix("bit_"))
        for u in range(stage.units):
            x = getattr(stage, f"unit_{u + 1}")(x)
            wanted[f"stage{s}_block{u}"] = want.pop(f"stage{s}_block{u}")
            found[f"stage{s}_block{u}"] = ops.convert_to_numpy(x)
    assert not want and found.keys() == wanted.keys()
    return max(
        float(np.abs(found[name][: len(value)] - value).max() / max(1.0, np.abs(value).max()))
        for name, value in wanted.items()
    )


@pytest.fixture
def official(bit, tmp_path):
    def function(stem, weights=None, **arguments):
        golden = Golden(stem)
        path = write_checkpoint(tmp_path / f"{stem}.npz", weights or golden.weights)
        return golden, bit(
            GOLDENS[stem],
            weights=path,
            input_shape=golden.inputs[""].shape[1:],
            include_preprocessing=False,
            classifier_activation=None,
            **arguments,
        )

    return function


@pytest.mark.parametrize("stem", GOLDENS)
def test_official_numbers(official, record_property, stem):
    worst = compare(*official(stem))
    record_property("maximum", worst)
    assert worst < 1e-5


@pytest.mark.parametrize(
    "part", ["padding of the root", "padding of the maximum", "epsilon", "norm"]
)
def test_mistakes_are_noticed(official, part):
    golden, model = official("G01")
    config = model.get_config()
    layers = {layer["name"]: layer["config"] for layer in config["layers"]}
    if part == "padding of the root":
        layers["bit_root_pad"]["padding"] = ((2, 4), (2, 4))
    elif part == "padding of the maximum":
        layers["bit_root_pool_pad"]["padding"] = ((0, 2), (0, 2))
    elif part == "epsilon":
        for s in (1, 2, 3):
            layers[f"bit_stage_{s}"]["epsilon"] = 1e-3  # the default of Keras
    else:
        layers["bit_norm"]["groups"] = 4
    wrong = keras.Model.from_config(config)
    wrong.set_weights(model.get_weights())
    assert compare(golden, model) < 1e-5 < compare(golden, wrong)


# Arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pooling, shape", [(None, (None, 2, 3, 32)), ("avg", (None, 32)), ("max", (None, 32))]
)
def test_features(bit, pooling, shape):
    model = randomized(bit(include_top=False, pooling=pooling, input_shape=(16, 24, 3)))
    assert model.output_shape == shape
    images = images_for(model, (16, 24))
    grid = run(keras.Model(model.inputs, model.get_layer("bit_relu").output), images)
    reduce = {None: np.asarray, "avg": lambda x: x.mean((1, 2)), "max": lambda x: x.max((1, 2))}
    np.testing.assert_allclose(run(model, images), reduce[pooling](grid), atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"input_shape": (7, 32, 3)}, "height must be at least 8 pixels. Received: height=7"),
        ({"input_shape": (32, 32)}, r"must be a tuple .height, width, channels"),
        (
            {"pooling": "token"},
            "unknown pooling. Received: pooling='token'. Available: None, 'avg'",
        ),
        ({"classes": 0}, "classes must be a positive integer. Received: classes=0"),
        ({"weights": "imagenet"}, "a named set .*weights='imagenet'. Named sets: none"),
    ],
)
def test_messages(bit, arguments, message):
    with pytest.raises(ValueError, match=f"Bit.*{message}"):
        bit(**arguments)


def test_any_size(bit):
    dynamic = randomized(bit(input_shape=(None, None, 3)))
    for size in ((8, 8), (9, 31), (40, 24)):
        static = bit(input_shape=(*size, 3))
        static.set_weights(dynamic.get_weights())
        images = images_for(static, size)
        want = run(static, images)
        np.testing.assert_allclose(run(dynamic, images), want, atol=1e-5)
    dynamic.compile("sgd", "mse", jit_compile=True)
    np.testing.assert_allclose(run(dynamic, images), want, atol=1e-5)
    assert keras_vit.recipe_of(dynamic).size == (32, 32)


def test_input_tensor_and_preprocessing(bit):
    pixels = keras.Input((40, 40, 3), name="pixels")
    x = keras.layers.Resizing(32, 32, name="shrink")(pixels)
    model = bit(input_tensor=x)
    assert model.inputs[0] is pixels and model.get_layer("shrink") is not None
    inside, outside = bit(name="a"), bit(include_preprocessing=False, name="b")
    outside.set_weights(randomized(inside).get_weights())
    images = images_for(inside)
    scaled = keras_vit.bit.preprocess_input(images, include_preprocessing=False)
    want = run(inside, images)
    np.testing.assert_allclose(run(outside, scaled), want, atol=1e-5)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(bit, policy):
    model, half = bit(name="a"), bit(name="b", dtype=policy)
    half.set_weights(randomized(model).get_weights())
    images = images_for(model)
    got = run(half, images)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, run(model, images), atol=0.1)


def test_training_reaches_every_parameter(bit):
    model = randomized(bit())
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy")
    history = model.fit(images_for(model, batch=4), np.arange(4), verbose=0)
    assert math.isfinite(history.history["loss"][0])
    for variable, old in zip(model.weights, before, strict=True):
        assert np.abs(np.array(variable) - old).max() > 0, variable.path


# Files --------------------------------------------------------------------------------------------


def test_variable_paths_are_a_file_format(bit, request):
    lines = [f"{v.path} {tuple(int(n) for n in v.shape)}" for v in bit().weights]
    file = PATHS / "bit.txt"
    if request.config.getoption("--update-paths"):
        file.write_text("\n".join(lines) + "\n")
    assert file.read_text().splitlines() == lines


def test_config_round_trip(bit):
    model = bit()
    config = model.get_config()
    again = keras.Model.from_config(json.loads(json.dumps(config)))
    assert [v.path for v in again.weights] == [v.path for v in model.weights]
    assert json.dumps(again.get_config()) == json.dumps(config)


@pytest.mark.parametrize("stem", GOLDENS)
@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
def test_own_files(official, bit, tmp_path, stem, suffix):
    golden, model = official(stem)
    own = tmp_path / f"own{suffix}"
    (model.save if suffix == ".keras" else model.save_weights)(own)
    again = bit(
        GOLDENS[stem],
        weights=own,
        classifier_activation=None,
        input_shape=model.input_shape[1:],
        include_preprocessing=False,
    )
    assert again.get_layer("bit_root_conv").standardization == {"G01": "timm", "G02": "bit"}[stem]
    x = golden.inputs[""]
    want = run(model, x)
    np.testing.assert_array_equal(run(again, x), want)
    if suffix == ".keras":
        reloaded = keras.models.load_model(own)
        np.testing.assert_array_equal(run(reloaded, x), want)


def test_everything_is_accounted_for(official, bit, tmp_path):
    golden, model = official("G01")
    arrays = dict(golden.weights)
    arrays["stages.3.blocks.0.norm1.weight"] = np.ones(4, "float32")
    del arrays["stages.1.blocks.0.norm2.bias"]
    broken = write_checkpoint(tmp_path / "broken.safetensors", arrays)
    before = model.get_weights()
    with pytest.raises(ValueError, match="(?s)2 problems; nothing was loaded") as error:
        load(model, broken)
    assert "stage_2/unit_1/norm_2/beta (16,): the file has no stages.1.blocks.0.norm2.bias" in str(
        error.value
    )
    assert "no variable for stages.3.blocks.0.norm1.weight (4,)" in str(error.value)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    deeper = dataclasses.replace(GOLDENS["G01"], stages=(3, 1, 1))
    with pytest.raises(ValueError, match=r"stages \(2, 1, 1\) \(expected \(3, 1, 1\)\)"):
        bit(deeper, weights=write_checkpoint(tmp_path / "w.safetensors", golden.weights))


def test_other_numerics_are_refused(official, bit, tmp_path):
    golden, _ = official("G01")
    model = bit(GOLDENS["G01"])
    path = write_checkpoint(tmp_path / "w.safetensors", golden.weights)
    with pytest.raises(ValueError, match="standardization timm .the model has bit"):
        load(model, path)


def test_new_head_and_no_head(official):
    golden, whole = official("G02")
    _, fresh = official("G02", classes=3, pretrained_top=False)
    assert not np.array(fresh.get_layer("bit_head").kernel).any()
    _, bare = official("G02", include_top=False, pooling="avg")
    x = golden.inputs[""]
    np.testing.assert_allclose(run(bare, x), golden.outputs["pre_logits"], atol=2e-5)
    with pytest.raises(ValueError, match="`classes` should be 7. Received classes=3"):
        official("G02", classes=3)


def test_weights_rows():
    names = keras_vit.list_models("BiT_*")
    assert names == [f"BiT_{n}" for n in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4")]
    for name in names:
        row = registry.get_variant(name)
        sets = {weights.name: weights for weights in row.weights}
        assert row.default == "imagenet" and sets["imagenet21k"].classes == 21843
        assert sets["imagenet"].image[0] == (480 if name == "BiT_R152x4" else 448)
        assert {w.statistics for w in row.weights} == {"half"}
        assert row.config.pixels == 32 and row.config.filters[-1] * 4 == row.config.width
        assert all(
            w.url.startswith("https://storage.googleapis.com/bit_models/") for w in row.weights
        )
