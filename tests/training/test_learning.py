"""Models learn: every family, in every precision, compiled once."""

import dataclasses

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.models import plain
from keras_vit.preprocessing import Recipe
from keras_vit.training.optimization import optimizer_for
from keras_vit.training.pipeline import steps_per_epoch, training_dataset
from keras_vit.training.recipes import get_recipe
from keras_vit.training.samples import Samples

CONFIG = plain.Config(patch=8, width=24, depth=2, heads=3, mlp=48, image=(16, 16))
FAMILIES = {
    "vit": {},
    "gap": {"tokens": (), "classifier": "gap", "positions": "sincos-2d"},
    "dinov2": {"registers": 2, "layer_scale": 1e-1, "feed_forward": plain.swiglu},
    "deepvit": {"attention": plain.re_attention},
    "deepvit-s": {
        "patch": 4,
        "stem": plain.conv_stem,
        "stem_stride": 2,
        "scale_adjustment": 0.5,
        "attention": plain.runs((plain.self_attention, 1), (plain.re_attention, 1)),
    },
    "hybrid": {
        "patch": 1,
        "stem": plain.residual_stem,
        "stem_stride": 8,
        "stages": (1, 1),
        "stem_width": 8,
        "groups": 4,
    },
}
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (32, 16, 16, 3)).astype("uint8")
LABELS = np.arange(32) % 4


def compiled(config=CONFIG, jit_compile=False, optimizer=None, **arguments):
    model = plain.model(config, classes=4, classifier_activation=None, **arguments)
    model.compile(
        optimizer(model) if optimizer else keras.optimizers.SGD(0.05, momentum=0.9, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=jit_compile or keras.backend.backend() == "jax",
    )
    return model


def learn(model):
    """Loss of the first and accuracy of the last of 75 steps on the same 32 pictures."""
    losses = []
    every_step = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    history = model.fit(
        np.tile(IMAGES, (25, 1, 1, 1)),
        np.tile(LABELS, 25),
        batch_size=32,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[every_step],
    )
    return losses[0], history.history["accuracy"][-1]


@pytest.fixture
def counted(monkeypatch):
    """Starts to list the blocks that Python runs; those of a compiled step are run once."""

    def start():
        calls = []
        forward = layers.TransformerBlock.call

        def call(self, *args, **kwargs):
            calls.append(self.name)
            return forward(self, *args, **kwargs)

        monkeypatch.setattr(layers.TransformerBlock, "call", call)
        return calls

    return start


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_is_learned_by_heart_by_a_step_that_is_compiled_once(family, counted):
    model = compiled(dataclasses.replace(CONFIG, **FAMILIES[family]), jit_compile=True)
    calls = counted()
    first_loss, accuracy = learn(model)
    assert abs(first_loss - np.log(4)) < 0.3
    assert accuracy == 1.0
    assert len(calls) <= 2 * CONFIG.depth  # JAX evaluates shapes first


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_learns_the_same(policy):
    recipe = dataclasses.replace(get_recipe("vit-finetune"), learning_rate=0.05, warm_up_epochs=0.0)
    model = compiled(optimizer=lambda model: optimizer_for(model, recipe, 32, 75, 2), dtype=policy)
    _, accuracy = learn(model)
    assert accuracy >= 0.98  # float32 has 1
    assert model.output.dtype == "float32"
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")


def test_a_short_last_batch_compiles_nothing_anew(counted):
    samples = Samples(IMAGES[:27], LABELS[:27], tuple("abcd"))
    model, calls = compiled(jit_compile=True), counted()
    batches = training_dataset(samples, Recipe((16, 16)), 8, drop_remainder=True, seed=1)
    steps = steps_per_epoch(samples, 8, drop_remainder=True)
    model.fit(batches, steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0)
    once = len(calls)
    model.fit(batches, steps_per_epoch=steps, epochs=3, shuffle=False, verbose=0)
    assert len(calls) == once


@pytest.mark.parametrize("activation", ["softmax", None])
def test_the_loss_of_a_head_that_knows_nothing(activation):
    model = plain.model(CONFIG, classes=4, classifier_activation=activation)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=activation is None)
    model.compile("sgd", loss)
    assert model.train_on_batch(IMAGES, LABELS) == pytest.approx(np.log(4), abs=1e-3)


def test_the_same_seed_gives_the_same_weights():
    def trained():
        keras.utils.set_random_seed(5)
        config = dataclasses.replace(CONFIG, depth=1)
        model = compiled(config, dropout_rate=0.2, drop_path_rate=0.2)
        model.fit(IMAGES, LABELS, batch_size=16, epochs=1, verbose=0)
        return model.get_weights()

    for a, b in zip(trained(), trained(), strict=True):
        np.testing.assert_array_equal(a, b)
