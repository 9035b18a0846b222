"""Quantised models are saved and reloaded."""

import dataclasses

import keras
import numpy as np
import pytest
from golden_files import run

import keras_vit
from keras_vit import registry
from keras_vit.models import plain

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method:UserWarning")


@pytest.mark.parametrize(
    "name, options",
    [
        ("ViT_B16", {}),
        ("ViT_B16", {"classifier": "map", "classifier_activation": None}),
        ("DeepViT_S", {}),
        ("DINOv2_g14", {}),
        ("DINOv2_S14_reg4", {"classifier": "linear"}),
    ],
)
def test_every_family_is_the_same_after_a_reload(name, options, tmp_path):
    config = registry.get_variant(name).config
    attention = config.attention[-2:] if isinstance(config.attention, tuple) else config.attention
    config = dataclasses.replace(
        config,
        width=12,
        depth=2,
        heads=2,
        mlp=16,
        attention=attention,
        image=(config.pixels, 2 * config.pixels),
    )
    model = plain.model(config, classes=3, **options)
    images = np.random.default_rng(0).uniform(0, 255, (2, *config.image, 3))
    model.quantize("int8")
    expected = run(model, images)
    paths = _paths(model)
    for file in ("once.keras", "twice.keras"):
        model.save(tmp_path / file)
        model = keras.models.load_model(tmp_path / file)
        assert _paths(model) == paths
        np.testing.assert_array_equal(run(model, images), expected)
    kernels = [v for v in model.variables if v.path.endswith("attention/query/kernel")]
    assert len(kernels) == 2 and {v.dtype for v in kernels} == {"int8"}


def _paths(model):
    """Of the weights; the states of random generators are numbered as they are made."""
    return [variable.path for variable in model.weights if "seed" not in variable.path]


def test_the_shipped_model_stays_accurate(tmp_path):
    model = keras_vit.ViT_Mini4(weights="fashion-mnist")
    with np.load(registry.__file__.replace("registry.py", "data/fashion_mnist.npz")) as file:
        images = np.repeat(file["test_images"][:40, ..., None], 3, axis=-1)
    before = run(model, images).argmax(-1)
    model.save(tmp_path / "float32.keras")
    model.quantize("int8")
    model.save(tmp_path / "int8.keras")
    loaded = keras.models.load_model(tmp_path / "int8.keras")
    assert (run(loaded, images).argmax(-1) == before).sum() >= 39
    sizes = [(tmp_path / name).stat().st_size for name in ("int8.keras", "float32.keras")]
    assert sizes[0] < 0.5 * sizes[1]


def test_a_model_that_is_not_quantised_says_nothing_of_it():
    layer = keras_vit.layers.TransformerBlock(
        keras_vit.layers.MultiHeadSelfAttention(2), keras_vit.layers.Mlp(8)
    )
    layer.build((None, 3, 4))
    assert "quantized" not in layer.get_build_config()
