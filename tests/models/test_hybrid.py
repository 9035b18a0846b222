"""The hybrids: files of other models, sizes, channels, feature maps, training."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from golden_files import Golden, config_of, run, write_checkpoint

import keras_vit
from keras_vit import feature_extractor
from keras_vit.models import plain, residual
from keras_vit.weights import load

TINY = plain.Config(
    patch=1,
    width=16,
    depth=2,
    heads=2,
    mlp=32,
    image=(32, 32),
    stem=plain.residual_stem,
    stem_stride=8,
    stages=(2, 1),
    stem_width=8,
    groups=4,
)
ROOT_ALONE = dataclasses.replace(TINY, patch=4, stem_stride=4, stages=())


@pytest.fixture
def hybrid(declare):
    def function(config=TINY, **arguments):
        builder = declare(f"Hybrid{len(keras_vit.list_models())}", config, classes=5)
        return builder(**{"weights": None, "name": "small", **arguments})

    return function


def randomized(model):
    generator = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(generator.normal(0.0, 0.2, variable.shape))
    return model


def images_for(model, batch=2):
    return np.random.default_rng(1).uniform(0, 255, (batch, *model.input_shape[1:]))


def test_rows_as_published():
    configs = {n: keras_vit.registry.get_variant(n).config for n in keras_vit.list_models("R*")}
    for name, pixels, stages in (
        ("R_Ti16", 32, ()),
        ("R26_S32", 32, (2, 2, 2, 2)),
        ("R26_B32", 32, (2, 2, 2, 2)),
        ("R50_B16", 16, (3, 4, 9)),
        ("R50_L32", 32, (3, 4, 6, 3)),
    ):
        config = configs.pop(name)
        assert (config.pixels, config.stages) == (pixels, stages)
        assert (config.stem_width, config.groups, config.group_epsilon) == (64, 32, 1e-6)
    assert not configs


def test_positions_of_the_smallest_hybrid():
    encoder = keras_vit.R_Ti16(weights=None).get_layer("r_ti16_patch_encoder")
    assert encoder.own["positions"].shape[0] == 50
    large = keras_vit.R_Ti16(weights=None, input_shape=(384, 384, 3))
    assert large.count_params() == 6_355_944


@pytest.mark.parametrize("positions", ["none", "learned-1d", "learned-2d", "sincos-2d"])
@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_positions_and_classifiers(hybrid, positions, classifier):
    model = randomized(hybrid(positions=positions, classifier=classifier))
    assert run(model, images_for(model)).shape == (2, 5)
    names = {v.path.split("/")[-1] for v in model.get_layer("small_patch_encoder").weights}
    assert ("class_token" in names) == (classifier == "token")
    assert ("positions" in names) == (positions == "learned-1d")
    assert ("row_positions" in names) == (positions == "learned-2d")


@pytest.mark.parametrize(
    "pooling, shape", [(None, (None, 17, 16)), ("token", (None, 16)), ("avg", (None, 16))]
)
def test_features(hybrid, pooling, shape):
    assert hybrid(include_top=False, pooling=pooling).output_shape == shape


def test_feature_maps(hybrid):
    model = hybrid(input_shape=(32, 64, 3))
    maps = run(feature_extractor(model, [0, 1]), images_for(model))
    assert {m.shape for m in maps.values()} == {(2, 4, 8, 16)}
    stages = [model.get_layer(f"small_stage_{s}").output.shape for s in (1, 2)]
    assert stages == [(None, 8, 16, 32), (None, 4, 8, 64)]


@pytest.mark.parametrize("config", [TINY, ROOT_ALONE], ids=["stages", "root alone"])
def test_any_size_from_one_file(hybrid, config, tmp_path):
    path = tmp_path / "w.weights.h5"
    model = randomized(hybrid(config))
    model.save_weights(path)
    dynamic = hybrid(config, weights=path, input_shape=(None, None, 3))
    wide = hybrid(config, weights=path, input_shape=(32, 64, 3))
    for static in (model, wide):
        images = images_for(static)
        want = run(static, images)
        np.testing.assert_allclose(run(dynamic, images), want, atol=1e-5)
    dynamic.compile("sgd", "mse", jit_compile=True)
    np.testing.assert_allclose(run(dynamic, images), want, atol=1e-5)
    assert keras_vit.recipe_of(dynamic).size == (32, 32)


def test_sizes_are_multiples_of_the_whole_stride(hybrid):
    with pytest.raises(ValueError, match="multiple of the patch size 8. Received: height=36"):
        hybrid(input_shape=(36, 32, 3))


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(hybrid, policy):
    model, half = randomized(hybrid()), randomized(hybrid(dtype=policy))
    images = images_for(model)
    got = run(half, images)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, run(model, images), atol=0.1)


def test_gradient_checkpointing_changes_nothing_but_memory(hybrid):
    results = []
    for flag in (False, True):
        model = randomized(hybrid(gradient_checkpointing=flag))
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
        model.fit(images_for(model), np.arange(2), verbose=0)
        results.append(model.get_weights())
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


# Files --------------------------------------------------------------------------------------------


@pytest.fixture
def official(tmp_path):
    """(configuration, path of the file, arrays) of a golden file."""

    def function(stem):
        golden = Golden(stem)
        path = write_checkpoint(tmp_path / f"{stem}.npz", golden.weights)
        return config_of(golden), path, golden.weights

    return function


def test_report(hybrid, official):
    config, path, arrays = official("B02")
    model = hybrid(config, weights=path, classes=7)
    report = load(model, path)
    assert len(report.loaded) == len(model.weights) == len(arrays)
    assert report.dropped == report.new == ()


def test_numerics_are_those_of_the_file(hybrid, official):
    for stem, expected in (("B02", (1e-6, "google")), ("E50", (1e-5, "timm"))):
        config, path, _ = official(stem)
        model = hybrid(config, weights=path, classes=7, input_shape=(*config.image, 3))
        unit = model.get_layer("small_stage_1").unit_1
        assert (unit.norm_1.epsilon, unit.conv_1.standardization) == expected
        assert (unit.epsilon, unit.standardization) == expected
    other = hybrid(config, classes=7)
    with pytest.raises(ValueError, match="group_epsilon 1e-05 .the model has 1e-06.*standardi"):
        load(other, path)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
@pytest.mark.parametrize("stem", ["B01", "B02", "E50"])
def test_own_files_keep_numerics(hybrid, official, tmp_path, stem, suffix):
    config, path, _ = official(stem)
    shape = (*config.image, 3)
    model = hybrid(config, weights=path, classes=7, input_shape=shape)
    own = tmp_path / f"own{suffix}"
    (model.save if suffix == ".keras" else model.save_weights)(own)
    again = hybrid(config, weights=own, classes=7, input_shape=shape)
    images = images_for(model)
    np.testing.assert_array_equal(run(again, images), run(model, images))
    assert again.get_layer("small_root_norm").epsilon == model.get_layer("small_root_norm").epsilon


def test_files_of_another_architecture(hybrid, official):
    vit, vit_path, _ = official("A01")
    config, path, _ = official("B02")
    deeper = dataclasses.replace(config, stages=(1, 1, 1))
    bit = residual.Config(stages=(2, 1), filters=(32, 64), stem_width=32)
    for wrong, file, message in (
        (config, vit_path, r"stages None \(expected \(2, 1\)\)"),
        (dataclasses.replace(vit, patch=1), path, r"stages \(2, 1\) \(expected None\)"),
        (deeper, path, r"stages \(2, 1\) \(expected \(1, 1, 1\)\)"),
        (dataclasses.replace(config, stem_width=64), path, r"stem_width 32 \(expected 64\)"),
    ):
        with pytest.raises(ValueError, match=f"another architecture.*{message}"):
            hybrid(wrong, weights=file)
    for wrong, file in ((bit, path), (bit, vit_path)):
        variant = keras_vit.registry.Variant(
            "Wrong", "bit", wrong, 0, "", (), None, 7, "half", residual.build
        )
        with pytest.raises(ValueError, match="Wrong: the weights are of another architecture"):
            residual.build(variant, weights=file)
    bit_path = official_bit(official)
    with pytest.raises(ValueError, match="another architecture.*filters"):
        hybrid(config, weights=bit_path)


def official_bit(official):
    golden = Golden("G02")
    return write_checkpoint(official("B02")[1].parent / "bit.npz", golden.weights)


def test_a_wrong_array_is_named(hybrid, official, tmp_path):
    config, path, arrays = official("B02")
    model = hybrid(config, weights=path, classes=7)
    broken = dict(arrays)
    del broken["block2/unit1/gn_proj/bias"]
    broken["block1/unit2/conv_proj/kernel"] = np.zeros((1, 1, 128, 128), "float32")
    with pytest.raises(ValueError, match="(?s)2 problems; nothing was loaded") as error:
        load(model, write_checkpoint(tmp_path / "broken.npz", broken))
    assert "stage_2/unit_1/projection_norm/beta (256,): the file has no" in str(error.value)
    assert "no variable for block1/unit2/conv_proj/kernel" in str(error.value)


def test_other_channels(hybrid, official):
    config, path, _ = official("B02")
    color = hybrid(config, weights=path, classes=7, include_preprocessing=False)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype("float32")
    want = run(color, images)
    doubled = hybrid(
        config, weights=path, classes=7, include_preprocessing=False, input_shape=(32, 32, 6)
    )
    # The tiled kernel is standardised again: everything before the first GroupNorm is doubled.
    got = run(doubled, np.concatenate([images, images], axis=-1))
    np.testing.assert_allclose(got, want, atol=1e-4)
    grey = hybrid(config, weights=path, classes=7, input_shape=(32, 32, 1))
    assert math.isfinite(run(grey, images_for(grey)).sum())
