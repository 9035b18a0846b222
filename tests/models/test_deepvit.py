"""DeepViT against the official numbers: maps, training mode, statistics, files, counts."""

import dataclasses
import math

import keras
import numpy as np
import pytest
from golden_files import Golden, config_of, write_checkpoint
from keras import ops

import keras_vit
from keras_vit import feature_extractor, registry
from keras_vit.layers import ReAttention
from keras_vit.models import plain
from keras_vit.weights import load

# zhoudaquan/dvit_repo, 1,000 classes: trainable parameters, and its buffers without the counters of
# batches, which Keras does not have.
COUNTS = {
    "DeepViT_16B": (24_426_664, 16 * 24),
    "DeepViT_S": (27_312_632, 5 * 24 + 256),
    "DeepViT_L": (58_883_708, 12 * 24 + 256),
    "PlainViT_16B": (24_423_784, 0),
}


def size(variables):
    return sum(math.prod(v.shape) for v in variables)


@pytest.mark.parametrize("name", COUNTS)
def test_count_before_the_first_call(name):
    model = getattr(keras_vit, name)(weights=None)
    found = size(model.trainable_weights), size(model.non_trainable_weights)
    assert found == COUNTS[name]


def re_attention_blocks(config):
    parts = [config.attention_of(i)(config) for i in range(config.depth)]
    return [i for i, part in enumerate(parts) if isinstance(part, ReAttention)]


def test_rows_as_released():
    rows = {n: registry.get_variant(n).config for n in keras_vit.list_models("DeepViT_*")}
    every = {n: list(range(depth)) for n, depth in (("16B", 16), ("24B", 24), ("32B", 32))}
    some = {"S": list(range(11, 16)), "L": list(range(20, 32)), "L_384": list(range(20, 32))}
    for name, blocks in {**every, **some}.items():
        config = rows[f"DeepViT_{name}"]
        assert re_attention_blocks(config) == blocks
        assert config.pixels == 16 and config.heads == 12 and config.mlp == 3 * config.width
        assert config.attention_normalization == "batch"
        assert config.scale_adjustment == (0.5 if name in some else None)
    scales = {n: rows[n].attention_of(-1)(rows[n]).scale for n in rows}
    assert scales.pop("DeepViT_S") == 33**-0.5
    assert set(scales.values()) == {1.0}
    assert [rows[f"DeepViT_{n}"].width for n in ("32B", "S", "L")] == [384, 396, 420]
    assert rows["DeepViT_L_384"].image == (384, 384)
    for depth in (16, 24, 32):
        twin = registry.get_variant(f"PlainViT_{depth}B").config
        assert twin == dataclasses.replace(
            rows[f"DeepViT_{depth}B"], attention=plain.self_attention
        )


@pytest.mark.parametrize("width", [256, 384, 512, 768])
def test_a_higher_dimension_is_a_number(width):
    config = registry.get_variant("PlainViT_16B").config
    config = dataclasses.replace(config, depth=12, width=width, heads=width // 32, mlp=3 * width)
    model = plain.model(config, "wide", classes=10)
    block = 10 * width**2 + 12 * width
    expected = (768 + 1 + 197 + 1) * width + 12 * block + 2 * width + 10 * (width + 1)
    assert model.count_params() == expected
    assert model.name == "wide" and model.output_shape == (None, 10)


def test_attention_for_every_block_or_none():
    message = "one part, or one for every block. Received: depth=4, attention for 3 blocks"
    with pytest.raises(ValueError, match=message):
        plain.Config(8, 16, 4, 2, 32, attention=plain.runs((plain.self_attention, 3)))


# The official numbers; logits, blocks and mixed maps are compared in test_parity.py. -------------


@pytest.fixture
def official(declare, tmp_path):
    """(golden file, model): with the weights of the golden file, for images that are normalised."""

    def function(stem, arrays=None, **arguments):
        golden = Golden(stem)
        builder = declare(f"Official{len(registry.list_models())}", config_of(golden), classes=7)
        path = write_checkpoint(tmp_path / f"{stem}.safetensors", arrays or golden.weights)
        defaults = {
            "include_preprocessing": False,
            "classifier_activation": None,
            "name": "small",
            "input_shape": golden.inputs[""].shape[1:],
        }
        return golden, builder(weights=path, **{**defaults, **arguments})

    return function


def blocks_of(model):
    return [layer for layer in model.layers if "block_" in layer.name]


def largest(ours, theirs):
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    return np.abs(np.asarray(ours) - theirs).max() / max(1.0, np.abs(theirs).max())


@pytest.mark.parametrize("stem", ["D01", "D02", "D04", "D05", "D06", "D07"])
def test_parts_of_a_block(official, stem):
    golden, model = official(stem)
    want, x = golden.outputs, golden.inputs[""]
    encoder = model.get_layer("small_patch_encoder")
    before = keras.Model(model.input, encoder.output)(x)
    positions = np.array(encoder.own["positions"])
    assert largest(before[:, 1:] - positions[1:], want["patch_embed"]) < 2e-5
    blocks = blocks_of(model)
    tokens = keras.Model(model.input, [block.input for block in blocks])(x)
    for i, (block, inputs) in enumerate(zip(blocks, tokens, strict=True)):
        scaled = inputs * (block.scale_adjustment or 1.0)
        normed = block.attention_norm(scaled)
        assert largest(block.attention.probabilities(normed), want[f"attn{i}"]) < 1e-5
        outputs, maps = block.attention(normed, return_attention=True)
        assert largest(outputs, want[f"block{i}_attn_out"]) < 2e-5
        if f"attn{i}_used" in want:
            assert largest(maps, want[f"attn{i}_used"]) < 1e-5
            assert np.abs(np.sum(maps, axis=-1) - 1).max() > 0.1
        else:
            np.testing.assert_allclose(np.sum(maps, axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("stem", ["D01", "D04"])
def test_training_mode(official, stem):
    golden, model = official(stem)
    x, want, old = golden.inputs[""], golden.outputs, golden.weights
    assert largest(model(x, training=True), want["train/logits"]) < 1e-5
    found = {v.path.removeprefix("small_"): np.array(v) for v in model.non_trainable_weights}
    compared = 0
    for name, theirs in want.items():
        name = name.removeprefix("train/after/")
        if not name.endswith(("running_mean", "running_var")):
            continue
        path, kind = our_path(name), name.rpartition("_")[2]
        moved, official_moved = (after - 0.9 * old[name] for after in (found[path], theirs))
        count = 2 * (17**2 if "attn" in name else 16**2)  # batch * queries * keys, or * pixels
        # Their variance is divided by n - 1, ours by n.
        factor = count / (count - 1) if kind == "var" else 1.0
        np.testing.assert_allclose(moved * factor, official_moved, rtol=1e-4, atol=1e-6)
        compared += 1
    assert compared == len(found) == {"D01": 6, "D04": 8}[stem]


def our_path(name):
    """Path of the moving statistic `name` of an official file."""
    layer, _, kind = name.rpartition(".")
    layer = layer.replace("blocks.", "block_").replace(".attn.var_norm", "/attention/norm")
    layer = layer.replace("patch_embed.bn", "stem/norm_")
    return f"{layer}/moving_{'mean' if kind == 'running_mean' else 'variance'}"


@pytest.mark.parametrize("stem", ["D01", "D04"])
def test_training_mode_block_by_block(official, stem):
    golden, model = official(stem)
    want, blocks = golden.outputs, blocks_of(model)
    x = keras.Model(model.input, blocks[0].input)(golden.inputs[""], training=True)
    for i, block in enumerate(blocks):
        x, maps = block(x, training=True, return_attention=True)
        if isinstance(block.attention, ReAttention):
            assert largest(maps, want[f"train/attn{i}_used"]) < 2e-5
    assert largest(x, want[f"train/block{len(blocks) - 1}"]) < 2e-5
    encoded = model.get_layer("small_encoder_norm")(x)
    assert largest(encoded, want["train/encoded"]) < 2e-5
    assert largest(encoded[:, 0], want["train/pre_logits"]) < 2e-5


WRONG = {
    "no scale adjustment": ("D07", {"scale_adjustment": None}),
    "no scale of the map": ("D06", {"attention": plain.re_attention}),
    "the head axis forgotten": ("D01", {"attention_normalization": "layer"}),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_noticed(official, declare, mistake):
    stem, change = WRONG[mistake]
    golden, model = official(stem)
    x, want = golden.inputs[""], golden.outputs["logits"]
    config = dataclasses.replace(config_of(golden), activation="gelu", **change)
    wrong = plain.model(
        config, "small", include_preprocessing=False, classifier_activation=None, classes=7
    )
    values = {v.path: v for v in model.weights}
    for variable in wrong.weights:
        variable.assign(values[variable.path])
    assert largest(model(x), want) < 1e-5 < 1e-3 < largest(wrong(x), want)


def test_epsilon_of_the_statistics_is_noticed(official):
    golden, model = official("D01")
    for block in blocks_of(model):
        block.attention.norm.epsilon = 1e-3
    assert largest(model(golden.inputs[""]), golden.outputs["logits"]) > 1e-4


def test_one_image_gives_what_a_batch_gives(official):
    golden, model = official("D04")
    x = np.random.default_rng(0).normal(size=(8, *golden.inputs[""].shape[1:]))
    whole = np.array(model(x, training=False))
    np.testing.assert_allclose(model(x[:1], training=False), whole[:1], atol=1e-5)
    np.testing.assert_allclose(model.predict(x, verbose=0, batch_size=3), whole, atol=1e-5)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_backbone_keeps_its_statistics(official, frozen):
    golden, backbone = official("D04", include_top=False, pooling="token")
    backbone.trainable = not frozen
    inputs = keras.Input(backbone.input_shape[1:])
    head = keras.layers.Dense(7)
    model = keras.Model(inputs, head(backbone(inputs)))
    model.compile(keras.optimizers.SGD(1e-3), "mse", metrics=["mae"], run_eagerly=True)
    x, y = golden.inputs[""], golden.outputs["logits"]
    before = [np.array(v) for v in backbone.weights]
    model.fit(x, y, epochs=1, verbose=0)
    same = [np.array_equal(a, b) for a, b in zip(before, backbone.weights, strict=True)]
    assert all(same) == frozen
    if frozen:
        logits = model(x, training=True)
        np.testing.assert_array_equal(logits, model(x, training=False))
        evaluated = model.evaluate(x, y, verbose=0, return_dict=True)
        np.testing.assert_allclose(evaluated["mae"], np.abs(logits - y).mean(), rtol=1e-5)


# Files --------------------------------------------------------------------------------------------


def test_everything_in_a_file_is_accounted_for(official, tmp_path):
    golden, model = official("D04")
    report = load(model, tmp_path / "D04.safetensors")
    assert report.format == "DeepViT"
    assert len(report.loaded) == len(model.weights)
    assert all(name.endswith("num_batches_tracked") for name in report.dropped)
    assert len(report.dropped) == 4


def without_norm(golden):
    return {k: v for k, v in golden.weights.items() if "var_norm" not in k}


def test_a_file_without_the_normalisation(official):
    """The same as one whose normalisation does nothing."""
    golden, model = official("D01", without_norm(Golden("D01")))
    assert [b.attention.normalization for b in blocks_of(model)] == ["none"] * 3
    arrays = dict(golden.weights)
    for name, value in golden.weights.items():
        if "var_norm" in name and value.ndim:
            one = {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1 - 1e-5}
            arrays[name] = np.full_like(value, one[name.rpartition(".")[2]])
    _, neutral = official("D01", arrays)
    assert [b.attention.normalization for b in blocks_of(neutral)] == ["batch"] * 3
    x = golden.inputs[""]
    np.testing.assert_allclose(model(x), neutral(x), atol=1e-5)


def test_a_file_without_the_normalisation_into_a_model_with_it(official, tmp_path):
    _, model = official("D01")
    path = write_checkpoint(tmp_path / "bare.safetensors", without_norm(Golden("D01")))
    with pytest.raises(ValueError, match=r"block_0/attention/norm/gamma \(4,\): the file has no"):
        load(model, path)


def test_files_with_and_without_re_attention_do_not_mix(declare, tmp_path):
    mixed, usual = Golden("D06"), Golden("D03")  # otherwise of one shape
    with_it = write_checkpoint(tmp_path / "with.safetensors", mixed.weights)
    without = write_checkpoint(tmp_path / "without.safetensors", usual.weights)
    vit = declare("Usual", config_of(usual), classes=7)
    deepvit = declare("Mixed", config_of(mixed), classes=7)
    message = "re-attention in blocks 0, 1, 2, the model in no block. Nothing was loaded"
    with pytest.raises(ValueError, match=message):
        vit(weights=with_it)
    with pytest.raises(ValueError, match=message):
        load(vit(weights=without), with_it)
    message = "re-attention in no block, the model in blocks 0, 1, 2. Nothing was loaded"
    with pytest.raises(ValueError, match=message):
        deepvit(weights=without)
    with pytest.raises(ValueError, match=r"DeepViT_16B: the weights are .*depth 3 .expected 16"):
        keras_vit.DeepViT_16B(weights=with_it)
    with pytest.raises(ValueError, match=r"ViT_Ti16: the weights are of another.*width 32"):
        keras_vit.ViT_Ti16(weights=with_it)


@pytest.mark.parametrize("normalization", ["batch", "layer", "none"])
@pytest.mark.parametrize("file", ["a.weights.h5", "a.keras"])
def test_our_own_files(declare, tmp_path, file, normalization):
    config = dataclasses.replace(
        config_of(Golden("D04")), attention_normalization=normalization, activation="gelu"
    )
    first = declare("First", config, classes=7)(weights=None)
    rng = np.random.default_rng(0)
    for variable in first.weights:
        variable.assign(rng.uniform(0.1, 0.3, variable.shape))
    (first.save if file.endswith(".keras") else first.save_weights)(tmp_path / file)
    other = dataclasses.replace(config, attention_normalization="batch")
    second = declare("Second", other, classes=7)(weights=tmp_path / file)
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    x = rng.uniform(0, 255, (2, 32, 32, 3))
    np.testing.assert_allclose(first(x), second(x), atol=1e-6)
    unscaled = declare("Unscaled", dataclasses.replace(config, scale_adjustment=None), classes=7)
    with pytest.raises(ValueError, match=r"another architecture.*scale_adjustment 0.5 .*None"):
        unscaled(weights=tmp_path / file)


# Images of other kinds through the stem -----------------------------------------------------------


def test_grey_images_give_what_grey_colours_give(official):
    golden, colours = official("D04")
    _, grey = official("D04", input_shape=(32, 32, 1))
    x = golden.inputs[""][..., :1]
    np.testing.assert_allclose(grey(x), colours(np.repeat(x, 3, axis=-1)), atol=1e-5)


def test_sizes_of_images(official):
    golden, dynamic = official("D04", input_shape=(None, None, 3))
    assert largest(dynamic(golden.inputs[""]), golden.outputs["logits"]) < 2e-5
    _, static = official("D04", input_shape=(24, 40, 3))
    x = np.random.default_rng(0).normal(size=(2, 24, 40, 3))
    np.testing.assert_allclose(dynamic(x), static(x), atol=2e-5)
    with pytest.raises(ValueError, match="height must be a multiple of the patch size 8.*24 or 32"):
        official("D04", input_shape=(28, 40, 3))


def test_feature_maps_behind_the_stem(official):
    golden, model = official("D05")
    extractor = feature_extractor(model, [-1], normalize=False)
    maps = extractor.predict(golden.inputs[""], verbose=0)["block_1"]
    want = golden.outputs["block1"][:, 1:].reshape(2, 2, 4, 32)
    assert largest(maps, want) < 2e-5


# CosReg -------------------------------------------------------------------------------------------


def test_similarity_of_maps_is_the_official_loss():
    golden = Golden("D09")
    maps = list(golden.inputs["attention_list"])
    for pairs in (1, 2, 3):
        want = golden.outputs[f"loss_n_comn{pairs}"] - golden.outputs["loss_plain"]
        found = 0.1 * keras_vit.deepvit.map_similarity(maps, pairs)
        np.testing.assert_allclose(found, want, atol=1e-6)
    np.testing.assert_array_equal(
        keras_vit.deepvit.map_similarity(maps), keras_vit.deepvit.map_similarity(maps, 3)
    )
    same = [ops.convert_to_tensor(maps[0])] * 2
    np.testing.assert_allclose(keras_vit.deepvit.map_similarity(same), 1.0, rtol=1e-6)


@pytest.mark.parametrize("count, pairs", [(4, 4), (4, 0), (1, None)])
def test_pairs_out_of_range(count, pairs):
    with pytest.raises(ValueError, match=f"less than the number of maps. Received: .*{count} maps"):
        keras_vit.deepvit.map_similarity([np.ones((1, 2, 3, 3))] * count, pairs)


def test_cos_reg_is_added_in_training_alone_and_holds_the_maps_apart():
    config = plain.Config(patch=8, width=16, depth=3, heads=4, mlp=32, image=(16, 16))
    model = plain.model(config, classes=3, classifier_activation=None)
    images = np.random.default_rng(0).uniform(0, 255, (8, 16, 16, 3)).astype("float32")
    labels = np.arange(8) % 3
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    alike = keras_vit.deepvit.map_similarity(keras_vit.analysis.attention_maps(model, images), 1)
    losses = []
    for weight in (0.0, 0.1, 10.0):
        regular = keras_vit.deepvit.with_cos_reg(model, weight, pairs=1)
        np.testing.assert_array_equal(
            regular.predict_on_batch(images), model.predict_on_batch(images)
        )
        regular.compile(keras.optimizers.SGD(0.0), loss)
        losses.append(float(regular.train_on_batch(images, labels)))
        assert float(regular.test_on_batch(images, labels)) == pytest.approx(losses[0], abs=1e-5)
    np.testing.assert_allclose(losses[1] - losses[0], 0.1 * alike, atol=1e-5)
    regular.compile(keras.optimizers.Adam(0.01), loss)
    regular.fit(images, labels, epochs=10, verbose=0)
    after = keras_vit.analysis.attention_maps(model, images)  # of the model that shares the layers
    assert keras_vit.deepvit.map_similarity(after, 1) < alike - 0.1
    with pytest.raises(ValueError, match="pairs=3, 3 maps"):
        keras_vit.deepvit.with_cos_reg(model, pairs=3)
