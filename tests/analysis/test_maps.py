"""Attention maps of every kind of model."""

import dataclasses
import gc
import logging
import weakref

import keras
import numpy as np
import pytest
from golden_files import Golden, config_of, write_checkpoint

import keras_vit
from keras_vit.analysis import (
    TokenLayout,
    attention_maps,
    iterate_attention_maps,
    maps,
    token_layout,
)
from keras_vit.analysis.maps import _run
from keras_vit.models import plain

BASE = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 24))
_replace = dataclasses.replace
FAMILIES = {
    "plain": (BASE, ("class",)),
    "without a class token": (_replace(BASE, tokens=(), classifier="gap"), ()),
    "distilled": (_replace(BASE, tokens=("class", "distillation")), ("class", "distillation")),
    "registers": (_replace(BASE, registers=4), ("class", *["register"] * 4)),
    "layer scale and SwiGLU": (
        _replace(BASE, layer_scale=0.5, feed_forward=plain.swiglu),
        ("class",),
    ),
    "stem": (_replace(BASE, patch=4, stem=plain.conv_stem, stem_stride=2), ("class",)),
    "hybrid": (
        _replace(
            BASE,
            patch=1,
            stem=plain.residual_stem,
            stem_stride=8,
            stages=(1, 1),
            stem_width=8,
            groups=4,
        ),
        ("class",),
    ),
    "re-attention": (
        _replace(
            BASE,
            attention=plain.runs((plain.self_attention, 1), (plain.re_attention, 1)),
            scale_adjustment=0.5,
        ),
        ("class",),
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(make, images, name):
    config, tokens = FAMILIES[name]
    model = make(config)
    before = model.predict_on_batch(images)
    found = attention_maps(model, images)
    count = len(tokens) + 2 * 3
    assert [(a.shape, a.dtype) for a in found] == [((2, 2, count, count), "float32")] * 2
    for attention in found:
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


def test_chosen_blocks_come_in_the_asked_order_and_stream_in_theirs(make, images, monkeypatch):
    model = make(_replace(BASE, depth=3))
    every = attention_maps(model, images)
    for blocks in ([2, 0], [-1, 0, 2], []):
        found = attention_maps(model, images, blocks)
        assert len(found) == len(blocks)
        for i, attention in zip(blocks, found, strict=True):
            np.testing.assert_array_equal(attention, every[i])
    stream = iterate_attention_maps(model, images, [-1, 0])
    run = []
    with monkeypatch.context() as patch:
        patch.setattr(
            maps, "_run", lambda part, inputs: run.append(part.name) or _run(part, inputs)
        )
        np.testing.assert_array_equal(next(stream), every[0])
        assert run[-1] == "tiny_block_0"  # the others have not been computed
    for attention, i in zip(stream, [2], strict=True):
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
    message = "flat has no attention: no layer of it is a TransformerBlock of keras_vit"
    for function in (attention_maps, iterate_attention_maps, token_layout):
        with pytest.raises(ValueError, match=message):
            function(model, images)


def test_two_models_in_one(make, images):
    inputs = keras.Input((16, 24, 3))
    sums = make(name="one")(inputs) + make(name="two")(inputs)
    with pytest.raises(ValueError, match="pair has 2 models with a keras_vit TransformerBlock"):
        attention_maps(keras.Model(inputs, sums, name="pair"), images)


def test_two_encoders_on_one_input(make, images):
    inputs = keras.Input((16, 24, 3))
    one, two = (make(name=name, input_tensor=inputs) for name in ("one", "two"))
    with pytest.raises(ValueError, match="One encoder is needed. Received: pair with 2 layers"):
        attention_maps(keras.Model(inputs, one.output + two.output, name="pair"), images)


def test_a_layer_between_blocks(make, images):
    model = make()

    def call(layer, *inputs, **options):
        outputs = layer(*inputs, **options)
        return keras.layers.Dense(16)(outputs) if layer.name == "tiny_block_0" else outputs

    changed = keras.models.clone_model(model, call_function=call)
    with pytest.raises(ValueError, match="lies between tiny_block_0 and tiny_block_1"):
        attention_maps(changed, images)


def test_a_model_written_as_a_class(make, images):
    class Classifier(keras.Model):
        def __init__(self):
            super().__init__(name="classifier")
            self.base = make()

        def call(self, inputs):
            return self.base(inputs)

    with pytest.raises(ValueError, match="functional or Sequential.*Received: Classifier"):
        attention_maps(Classifier(), images)


def test_a_model_called_by_keyword(make, images):
    model = make()
    inputs = keras.Input((16, 24, 3))
    outer = keras.Model(inputs, keras.layers.Dense(2)(model(inputs=inputs)))
    np.testing.assert_allclose(
        attention_maps(outer, images), attention_maps(model, images), atol=1e-6
    )


def test_a_model_that_was_looked_at_can_go(make, images):
    models = [make(), nested(make())]
    models[1](np.zeros((1, 32, 48, 3)))
    for model in models:
        attention_maps(model, np.zeros((1, *model.input_shape[1:])))
    gone = [weakref.ref(model) for model in models]
    del model
    models.clear()
    keras.backend.clear_session()
    gc.unfreeze()  # as the tests freeze what there is
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


@pytest.mark.parametrize("index", [2, -3])
def test_blocks_out_of_range(make, images, index):
    message = f"the model has 2 blocks. Received: {index}"
    with pytest.raises(ValueError, match=message):
        iterate_attention_maps(make(), images, [0, index])


def test_blocks_are_a_list_or_any_iterable(make, images):
    model = make()
    with pytest.raises(ValueError, match="must be a list of indices. Received: blocks=0"):
        attention_maps(model, images, 0)
    assert len(list(iterate_attention_maps(model, images, (i for i in range(2))))) == 2


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
