"""Feature maps of blocks."""

import keras
import numpy as np
import pytest
from golden_files import Golden, config_of, run, write_checkpoint

import keras_vit
from keras_vit import feature_extractor


@pytest.mark.parametrize("stem", ["F01", "F02"])
def test_official_intermediate_layers(declare, tmp_path, stem):
    golden = Golden(stem)
    path = write_checkpoint(tmp_path / "w", golden.weights)
    builder = declare("Small", config_of(golden))
    model = builder(
        weights=path, include_top=False, include_preprocessing=False, input_shape=(42, 42, 3)
    )
    maps = run(feature_extractor(model, [-1]), golden.inputs["42x42"])
    want = golden.outputs["42x42/intermediate_last_reshaped_nchw"].transpose(0, 2, 3, 1)
    np.testing.assert_allclose(maps["block_1"], want, atol=1e-5)


def randomized(model):
    generator = np.random.default_rng(0)
    for variable in model.weights:
        variable.assign(generator.normal(0, 0.2, variable.shape))
    return model


def test_grid_and_tokens_agree(tiny):
    model = randomized(tiny(weights=None, input_shape=(16, 40, 3)))
    images = np.random.default_rng(1).uniform(0, 255, (2, 16, 40, 3))
    grid = run(feature_extractor(model, [0, 1], normalize=False), images)
    tokens = run(feature_extractor(model, layout="tokens", normalize=False), images)
    assert list(grid) == list(tokens) == ["block_0", "block_1"]
    assert grid["block_0"].shape == (2, 2, 5, 16) and tokens["block_0"].shape == (2, 11, 16)
    for name, value in grid.items():
        np.testing.assert_array_equal(value.reshape(2, 10, 16), tokens[name][:, 1:])
    assert np.abs(tokens["block_0"] - tokens["block_1"]).max() > 1e-3


def test_norm_on_request_and_logits_untouched(tiny):
    model = randomized(tiny(weights=None))
    images = np.random.default_rng(1).uniform(0, 255, (2, 32, 32, 3))
    before = run(model, images)
    last = run(feature_extractor(model, [-1], layout="tokens"), images)["block_1"]
    norm = keras.Model(model.inputs, model.get_layer("tiny_encoder_norm").output)
    np.testing.assert_array_equal(last, run(norm, images))
    np.testing.assert_array_equal(run(model, images), before)


def test_after_a_reload_and_at_a_dynamic_size(tiny, tmp_path):
    model = randomized(tiny(weights=None, input_shape=(None, None, 3), include_top=False))
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    maps = run(feature_extractor(again, [1]), np.zeros((1, 24, 40, 3)))
    assert maps["block_1"].shape == (1, 3, 5, 16)


def test_errors(tiny):
    model = tiny(weights=None)
    with pytest.raises(ValueError, match="tiny has 2 blocks. Received: 2"):
        feature_extractor(model, [2])
    with pytest.raises(
        ValueError, match="layout must be 'grid' or 'tokens'. Received: layout='map'"
    ):
        feature_extractor(model, layout="map")
    with pytest.raises(ValueError, match="no TransformerBlock of its own.*get_layer"):
        feature_extractor(keras.Sequential([model, keras.layers.Dense(2)]))
    with pytest.raises(ValueError, match="no final norm over the tokens"):
        feature_extractor(tiny(weights=None, classifier="avg"))


def test_public():
    assert keras_vit.feature_extractor is feature_extractor
