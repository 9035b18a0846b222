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
        "patch": 4, "stem": plain.conv_stem, "stem_stride": 2, "scale_adjustment": 0.5,
        "attention": plain.runs((plain.self_attention, 1), (plain.re_attention, 1)),
    },
}  # fmt: skip
RECIPE = dataclasses.replace(
    get_recipe("deit-scratch"), learning_rate=3e-3, reference_batch=None, warm_up_epochs=0.0,
    clip_norm=1.0, weight_decay=0.0, ema_momentum=None,
)  # fmt: skip
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (32, 16, 16, 3)).astype("uint8")
LABELS = np.arange(32) % 4


def compiled(config=CONFIG, jit_compile=False, **arguments):
    model = plain.model(config, classes=4, classifier_activation=None, **arguments)
    model.compile(
        optimizer_for(model, RECIPE, 32, 1, 1000),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=jit_compile or keras.backend.backend() == "jax",
    )
    return model


def learn(model):
    """Losses of the first and accuracy of the last of 100 steps on the same 32 pictures."""
    losses = []
    every_step = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    history = model.fit(
        np.tile(IMAGES, (25, 1, 1, 1)), np.tile(LABELS, 25), batch_size=32, epochs=4,
        shuffle=False, verbose=0, callbacks=[every_step],
    )  # fmt: skip
    return losses[0], history.history["accuracy"][-1]


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_is_learned_by_heart(family):
    first_loss, accuracy = learn(compiled(dataclasses.replace(CONFIG, **FAMILIES[family])))
    assert abs(first_loss - np.log(4)) < 0.3
    assert accuracy == 1.0


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_learns_the_same(policy):
    model = compiled(dtype=policy)
    _, accuracy = learn(model)
    assert accuracy >= 0.98  # float32 has 1
    assert model.output.dtype == "float32"
    scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert scaled == (policy == "mixed_float16")


def test_the_training_step_is_compiled_once(monkeypatch):
    calls = []
    forward = layers.TransformerBlock.call

    def counted(self, *args, **kwargs):
        calls.append(self.name)
        return forward(self, *args, **kwargs)

    samples = Samples(IMAGES[:27], LABELS[:27], tuple("abcd"))
    model = compiled(jit_compile=True)
    monkeypatch.setattr(layers.TransformerBlock, "call", counted)
    batches = training_dataset(samples, Recipe((16, 16)), 8, drop_remainder=True, seed=1)
    steps = steps_per_epoch(samples, 8, drop_remainder=True)
    model.fit(batches, steps_per_epoch=steps, epochs=1, shuffle=False, verbose=0)
    once = len(calls)
    model.fit(batches, steps_per_epoch=steps, epochs=3, shuffle=False, verbose=0)
    assert len(calls) == once and once <= 2 * CONFIG.depth  # JAX evaluates shapes first


def test_the_same_seed_gives_the_same_weights():
    def trained():
        keras.utils.set_random_seed(5)
        config = dataclasses.replace(CONFIG, depth=1)
        model = compiled(config, dropout_rate=0.2, drop_path_rate=0.2)
        model.fit(IMAGES, LABELS, batch_size=16, epochs=1, verbose=0)
        return model.get_weights()

    for a, b in zip(trained(), trained(), strict=True):
        np.testing.assert_array_equal(a, b)
