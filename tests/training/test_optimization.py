import dataclasses

import keras
import numpy as np
import pytest

from keras_vit.models import plain
from keras_vit.training.optimization import (
    add_lora,
    decays,
    freeze,
    merge_lora,
    optimizer_for,
    schedule,
    train_head_only,
)
from keras_vit.training.recipes import get_recipe

CONFIG = plain.Config(patch=8, width=16, depth=3, heads=2, mlp=32, image=(16, 16))
RECIPE = dataclasses.replace(get_recipe("vit-finetune"), clip_norm=None, warm_up_epochs=0.0)
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype("float32")


def model(**changes):
    built = plain.model(
        dataclasses.replace(CONFIG, **changes), classes=3, classifier_activation=None
    )
    head = built.layers[-1]
    head.kernel.assign(np.random.default_rng(1).normal(0, 0.5, head.kernel.shape))
    return built


def apply_ones(built, optimizer):
    """How far each trainable variable moves for a gradient of ones."""
    variables = built.trainable_variables
    before = [keras.ops.convert_to_numpy(v) for v in variables]
    optimizer.apply([keras.ops.ones(v.shape) for v in variables], variables)
    return {
        v.path: float(np.mean(b - keras.ops.convert_to_numpy(v)))
        for v, b in zip(variables, before, strict=True)
    }


def test_schedule_warms_up_and_falls_to_the_final_rate():
    recipe = dataclasses.replace(
        RECIPE, learning_rate=1.0, warm_up_epochs=1.0, final_learning_rate=0.1
    )
    rate = schedule(recipe, 32, 10, 20)
    values = [float(rate(step)) for step in (0, 5, 10, 105, 200)]
    np.testing.assert_allclose(values, [0.0, 0.5, 1.0, 0.55, 0.1], atol=1e-6)


def test_warm_up_is_at_most_a_tenth_of_a_short_training():
    recipe = dataclasses.replace(RECIPE, learning_rate=1.0, warm_up_epochs=5.0)
    assert float(schedule(recipe, 32, 10, 2)(2)) == pytest.approx(1.0)


def test_only_kernels_decay():
    built = model(registers=1, layer_scale=1e-5)
    paths = {v.path.split("/")[-1] for v in built.trainable_variables if decays(v)}
    assert paths == {"kernel"}
    left = {v.path.split("/")[-1] for v in built.trainable_variables if not decays(v)}
    assert {"bias", "gamma", "beta", "positions", "class_token"} <= left


def test_weight_decay_reaches_kernels_alone():
    recipe = dataclasses.replace(
        get_recipe("deit-scratch"),
        learning_rate=0.1,
        reference_batch=None,
        weight_decay=0.5,
        warm_up_epochs=0.0,
        ema_momentum=None,
    )
    built = model()
    optimizer = optimizer_for(built, recipe, 4, 10, 1)
    variables = built.trainable_variables
    before = [keras.ops.convert_to_numpy(v) for v in variables]
    optimizer.apply([keras.ops.zeros(v.shape) for v in variables], variables)
    for variable, old in zip(variables, before, strict=True):
        expected = old * (1 - 0.1 * 0.5) if variable.path.endswith("kernel") else old
        np.testing.assert_allclose(keras.ops.convert_to_numpy(variable), expected, atol=1e-6)


def test_layer_decay_is_one_at_the_head_and_a_power_below():
    recipe = dataclasses.replace(RECIPE, learning_rate=0.1, layer_decay=0.5)
    built = model()
    moved = apply_ones(built, optimizer_for(built, recipe, 4, 10, 1))
    expected = {
        "head": 0.1,
        "encoder_norm": 0.1,
        "block_2": 0.05,
        "block_1": 0.025,
        "block_0": 0.0125,
        "patch_encoder": 0.00625,
    }
    for path, distance in moved.items():
        (name,) = (part for part in expected if f"_{part}/" in path)
        assert distance == pytest.approx(expected[name], rel=1e-3), path


@pytest.mark.parametrize("momentum", [None, 0.5])
def test_layer_decay_trains_by_plain_fit(momentum):
    recipe = dataclasses.replace(RECIPE, learning_rate=0.1, layer_decay=0.8, ema_momentum=momentum)
    built = model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    built.compile(optimizer_for(built, recipe, 4, 1, 8), loss)
    data = IMAGES, np.array([0, 1, 2, 0])
    averages = [keras.callbacks.SwapEMAWeights()] if momentum else []
    losses = built.fit(
        *data, epochs=8, validation_data=data, callbacks=averages, verbose=0
    ).history["loss"]
    assert losses[-1] < losses[0]


def test_accumulated_halves_are_one_batch():
    labels = np.array([0, 1, 2, 0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    whole, halves = model(), model()
    halves.set_weights(whole.get_weights())
    recipe = dataclasses.replace(RECIPE, learning_rate=0.1)
    whole.compile(optimizer_for(whole, recipe, 4, 1, 10_000), loss)
    halves.compile(optimizer_for(halves, recipe, 2, 2, 10_000, accumulation=2), loss)
    whole.fit(IMAGES, labels, batch_size=4, epochs=1, verbose=0)
    halves.fit(IMAGES, labels, batch_size=2, epochs=1, shuffle=False, verbose=0)
    for a, b in zip(whole.get_weights(), halves.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_freeze_leaves_the_later_blocks():
    built = model()
    freeze(built, 2)
    assert {v.path.split("/")[0] for v in built.trainable_variables} == {
        "vit_block_2",
        "vit_encoder_norm",
        "vit_head",
    }
    with pytest.raises(ValueError, match="3 blocks to freeze. Received: blocks=4"):
        freeze(built, 4)


def test_frozen_re_attention_keeps_its_statistics():
    built = model(attention=plain.re_attention)
    freeze(built)
    before = {w.path: keras.ops.convert_to_numpy(w) for w in built.weights if "moving" in w.path}
    built.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    built.fit(IMAGES, np.array([0, 1, 2, 0]), epochs=1, verbose=0)
    assert before
    for weight in built.weights:
        if weight.path in before:
            np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), before[weight.path])


def test_train_head_only():
    built = model()
    train_head_only(built)
    assert [v.path for v in built.trainable_variables] == ["vit_head/kernel", "vit_head/bias"]


def test_lora_trains_updates_and_head_and_merges():
    built = model()
    expected = built.predict(IMAGES, verbose=0)
    add_lora(built, 2)
    np.testing.assert_allclose(built.predict(IMAGES, verbose=0), expected, atol=1e-6)
    names = {v.path.split("/")[-1] for v in built.trainable_variables}
    assert names == {"lora_kernel_a", "lora_kernel_b", "kernel", "bias"}
    assert len(built.trainable_variables) == 3 * 2 * 2 + 2
    frozen = keras.ops.convert_to_numpy(built.get_layer("vit_block_0").mlp.hidden.kernel)
    built.compile(
        keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    built.fit(IMAGES, np.array([0, 1, 2, 0]), epochs=3, verbose=0)
    block = built.get_layer("vit_block_0")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(block.mlp.hidden.kernel), frozen)
    trained = built.predict(IMAGES, verbose=0)
    assert np.abs(trained - expected).max() > 1e-3
    merged = merge_lora(built)
    assert not any("lora" in w.path for w in merged.weights)
    np.testing.assert_allclose(merged.predict(IMAGES, verbose=0), trained, atol=1e-5)


@pytest.mark.parametrize("options", [{"rank": 0}, {"rank": 2, "targets": ("mlp",)}])
def test_lora_arguments(options):
    with pytest.raises(ValueError, match="Received"):
        add_lora(model(), **options)
