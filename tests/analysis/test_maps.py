"""Attention maps of every kind of model."""

import dataclasses
import logging
import types

import keras
import numpy as np
import pytest
from golden_files import Golden, config_of, write_checkpoint

import keras_vit
from keras_vit.analysis import TokenLayout, attention_maps, iterate_attention_maps, token_layout
from keras_vit.models import plain

BASE = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 24))
_replace = dataclasses.replace
FAMILIES = {
    "plain": (BASE, ("class",)),
    "without a class token": (_replace(BASE, tokens=(), classifier="gap"), ()),
    "distilled": (_replace(BASE, tokens=("class", "distillation")), ("class", "distillation")),
    "registers": (_replace(BASE, registers=4), ("class", *["register"] * 4)),
    "layer scale and SwiGLU": (
        _replace(BASE, layer_scale=0.5, feed_forward=plain.swiglu), ("class",)
    ),
    "stem": (_replace(BASE, patch=4, stem=plain.conv_stem, stem_stride=2), ("class",)),
    "hybrid": (
        _replace(BASE, patch=1, stem=plain.residual_stem, stem_stride=8, stages=(1, 1),
                 stem_width=8, groups=4),
        ("class",),
    ),
    "re-attention": (
        _replace(BASE, attention=plain.runs((plain.self_attention, 1), (plain.re_attention, 1)),
                 scale_adjustment=0.5),
        ("class",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(make, images, name):
    config, tokens = FAMILIES[name]
    model = make(config)
    before = model.predict_on_batch(images)
    maps = attention_maps(model, images)
    count = len(tokens) + 2 * 3
    assert [(a.shape, a.dtype) for a in maps] == [((2, 2, count, count), "float32")] * 2
    for attention in maps:
        assert attention.min() >= 0 and attention.std() > 0.01
        np.testing.assert_allclose(attention.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_array_equal(model.predict_on_batch(images), before)
    assert token_layout(model, images) == TokenLayout((16, 24), (2, 3), tokens)


@pytest.mark.parametrize(
    "stem", ["A01", "A03", "B02", "B03", "D01", "D02", "D04", "D05", "D06", "D07"]
)
def test_official_maps(declare, tmp_path, stem):
    golden = Golden(stem)
    path = write_checkpoint(tmp_path / "weights.npz", golden.weights)
    images = golden.inputs[""]
    model = declare("Official", config_of(golden))(
        weights=path, include_top=False, include_preprocessing=False, input_shape=images.shape[1:]
    )
    softmax = attention_maps(model, images)
    mixed = attention_maps(model, images, kind="mixed")
    for i, (before, after) in enumerate(zip(softmax, mixed, strict=True)):
        want = golden.outputs[f"attn{i}"]
        np.testing.assert_allclose(before, want, atol=1e-5)
        np.testing.assert_allclose(after, golden.outputs.get(f"attn{i}_used", want), atol=1e-5)
    mixes = [np.abs(a - b).max() > 0.1 for a, b in zip(softmax, mixed, strict=True)]
    assert mixes == [f"attn{i}_used" in golden.outputs for i in range(len(softmax))]


def test_chosen_blocks_come_in_the_asked_order_and_stream_in_theirs(make, images):
    model = make(_replace(BASE, depth=3))
    every = attention_maps(model, images)
    for blocks in ([2, 0], [-1, 0, 2], []):
        found = attention_maps(model, images, blocks)
        assert len(found) == len(blocks)
        for i, attention in zip(blocks, found, strict=True):
            np.testing.assert_array_equal(attention, every[i])
    stream = iterate_attention_maps(model, images, [-1, 0])
    assert isinstance(stream, types.GeneratorType)
    for attention, i in zip(stream, [0, 2], strict=True):
        np.testing.assert_array_equal(attention, every[i])


def test_an_image_has_the_same_maps_in_any_batch(make, images):
    model = make(_replace(BASE, attention=plain.re_attention))
    for kind in ("softmax", "mixed"):
        both = attention_maps(model, images, kind=kind)
        alone = attention_maps(model, images[:1], kind=kind)
        for one, two in zip(alone, both, strict=True):
            np.testing.assert_allclose(one, two[:1], atol=1e-5)


def test_a_dynamic_size(make, images):
    fixed, dynamic = make(), make(input_shape=(None, None, 3))
    larger = np.random.default_rng(3).uniform(0, 255, (1, 32, 40, 3))
    assert token_layout(dynamic, larger) == TokenLayout((32, 40), (4, 5))
    assert attention_maps(dynamic, larger)[0].shape == (1, 2, 21, 21)
    assert token_layout(fixed, images).grid == (2, 3)


def nested(model):
    """The model as a layer: in a functional model after another layer, that in a Sequential one."""
    inputs = keras.Input((32, 48, 3))
    x = keras.layers.AveragePooling2D(2)(inputs)
    x = model(x, training=False)
    inner = keras.Model(inputs, keras.layers.Dense(4)(x), name="inner")
    return keras.Sequential([keras.layers.Rescaling(2.0), inner, keras.layers.Dense(2)])


def test_nested_models_and_a_reload(make, images, tmp_path):
    model = make()
    outer = nested(model)
    doubled = np.repeat(np.repeat(images, 2, axis=1), 2, axis=2) / 2
    outer(doubled)
    before = outer.predict_on_batch(doubled)
    found, want = attention_maps(outer, doubled), attention_maps(model, images)
    np.testing.assert_allclose(found, want, atol=1e-6)
    np.testing.assert_array_equal(outer.predict_on_batch(doubled), before)
    assert token_layout(outer, doubled) == TokenLayout((32, 48), (2, 3))
    outer.save(tmp_path / "outer.keras")
    again = keras.models.load_model(tmp_path / "outer.keras")
    np.testing.assert_allclose(attention_maps(again, doubled), want, atol=1e-6)
    np.testing.assert_allclose(again.predict_on_batch(doubled), before, atol=1e-6)
    feature_map = keras_vit.feature_extractor(model, [0]).predict_on_batch(images)["block_0"]
    assert feature_map.shape == (2, 2, 3, 16)  # the model is as usable as before


DTYPES = ["mixed_bfloat16", "mixed_float16", "bfloat16"]
if keras.backend.backend() != "jax":  # which has float64 only after a switch of its own
    DTYPES.append("float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(make, images, dtype):
    want = attention_maps(make(), images)
    model = make(dtype=dtype)
    found = attention_maps(model, images)
    assert all(attention.dtype == "float32" for attention in found)
    np.testing.assert_allclose(found, want, atol=0.1 if dtype.endswith("16") else 1e-5)
    keras.config.set_dtype_policy("mixed_bfloat16")  # of other layers than the model's
    np.testing.assert_array_equal(attention_maps(model, images), found)


def test_images_of_any_kind(make, images):
    model = make()
    whole = images.astype("uint8")
    want = attention_maps(model, whole)
    for same in (whole.tolist(), keras.ops.convert_to_tensor(whole), whole.astype("float64")):
        np.testing.assert_allclose(attention_maps(model, same), want, atol=1e-6)


def test_a_second_call_follows_the_weights(make, images):
    model = make()
    before = attention_maps(model, images)
    kernel = model.get_layer("tiny_block_0").attention.query.kernel
    kernel.assign(2 * kernel)
    after = attention_maps(model, images)
    assert np.abs(after[0] - before[0]).max() > 0.1
    model.get_layer("tiny_block_0").attention.query.enable_lora(2)
    lora = model.get_layer("tiny_block_0").attention.query.lora_kernel_b
    np.testing.assert_allclose(attention_maps(model, images), after, atol=1e-6)
    lora.assign(keras.ops.ones(lora.shape))
    assert np.abs(attention_maps(model, images)[0] - after[0]).max() > 0.01


def test_many_blocks_bring_no_warning(make, images, caplog):
    with caplog.at_level(logging.WARNING):
        attention_maps(make(_replace(BASE, depth=8)), images)
    assert not caplog.records


def test_centres_of_the_patches():
    centres = TokenLayout((16, 24), (2, 3)).centres()
    want = [(4, 4), (4, 12), (4, 20), (12, 4), (12, 12), (12, 20)]
    np.testing.assert_array_equal(centres, want)


def test_models_without_attention(images):
    model = keras.Sequential([keras.Input((16, 24, 3)), keras.layers.Flatten()], name="flat")
    message = "flat has 0 models with a keras_vit TransformerBlock in it; one is needed"
    for function in (attention_maps, iterate_attention_maps, token_layout):
        with pytest.raises(ValueError, match=message):
            function(model, images)


def test_two_models_in_one(make, images):
    inputs = keras.Input((16, 24, 3))
    sums = make(name="one")(inputs) + make(name="two")(inputs)
    with pytest.raises(ValueError, match="pair has 2 models with a keras_vit TransformerBlock"):
        attention_maps(keras.Model(inputs, sums, name="pair"), images)


@pytest.mark.parametrize("index", [2, -3])
def test_blocks_out_of_range(make, images, index):
    message = f"the model has 2 blocks. Received: {index}"
    with pytest.raises(ValueError, match=message):
        iterate_attention_maps(make(), images, [0, index])


@pytest.mark.parametrize("shape", [(16, 24, 3), (2, 24, 16, 3), (2, 16, 24, 1), (0, 16, 24, 3)])
def test_images_that_do_not_fit(make, shape):
    model = make()
    for function in (attention_maps, token_layout):
        with pytest.raises(ValueError, match="tiny takes one or more images of shape") as caught:
            function(model, np.zeros(shape))
        assert str(caught.value).endswith(f"Received: images.shape={shape}.")


def test_unknown_kind(make, images):
    with pytest.raises(ValueError, match="Received: kind='used'. Available: .'softmax', 'mixed'"):
        attention_maps(make(), images, kind="used")


def test_public():
    assert keras_vit.analysis.attention_maps is attention_maps
