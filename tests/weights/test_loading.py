"""Loading: everything is accounted for, or nothing happens."""

import warnings

import keras
import numpy as np
import pytest
from golden_files import Golden, config_of, run, write_checkpoint

import keras_vit
from keras_vit.models import plain
from keras_vit.weights import load, loading


@pytest.fixture
def google(declare, tmp_path):
    """(builder, path, arrays) of the small official ViT, 32x32, 7 classes."""
    golden = Golden("A01")
    builder = declare("Small", config_of(golden), classes=7)
    path = write_checkpoint(tmp_path / "official.npz", golden.weights)
    return builder, path, dict(golden.weights)


@pytest.fixture
def timm(declare, tmp_path):
    golden = Golden("E01")
    builder = declare("Small_timm", config_of(golden), classes=7)
    return builder, write_checkpoint(tmp_path / "t.safetensors", golden.weights), golden.weights


def values(model):
    return {v.path: np.array(v) for v in model.weights}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for path in a:
        np.testing.assert_array_equal(a[path], b[path], err_msg=path)


def test_report(google):
    builder, path, arrays = google
    model = builder(weights=path)
    report = load(model, path)
    assert report.format == "Google ViT (vit_jax, big_vision)"
    assert len(report.loaded) == len(model.weights) == len(arrays)
    assert report.dropped == report.resampled == report.new == ()
    assert "40 variables loaded" in str(report)


@pytest.mark.parametrize(
    "change, complaint",
    [
        (
            lambda a: a.pop("Transformer/encoderblock_1/LayerNorm_2/bias"),
            r"block_1/mlp_norm/beta \(32,\): the file has no "
            r"Transformer/encoderblock_1/LayerNorm_2/bias",
        ),
        (lambda a: a.update(extra=np.zeros(3)), r"the model has no variable for extra \(3,\)"),
        (
            lambda a: a.update(cls=np.zeros((1, 1, 31))),
            r"patch_encoder/class_token \(1, 1, 32\): cls \(1, 1, 31\) gives \(1, 1, 31\)",
        ),
        (
            lambda a: a.update({"head/bias": np.zeros(8)}),
            r"head/bias \(7,\): head/bias \(8,\) gives \(8,\)",
        ),
    ],
)
def test_one_fault_and_nothing_is_loaded(google, tmp_path, change, complaint):
    builder, path, arrays = google
    model = builder(weights=path)
    before = values(model)
    change(arrays)
    broken = write_checkpoint(tmp_path / "broken.npz", {k: v * 2 for k, v in arrays.items()})
    with pytest.raises(ValueError, match=f"(?s)nothing was loaded.*{complaint}") as error:
        load(model, broken)
    assert "1 problem;" in str(error.value)
    assert_same(values(model), before)


def test_every_complaint_is_listed(google, tmp_path):
    builder, path, arrays = google
    model = builder(weights=path)
    del arrays["cls"], arrays["head/bias"]
    arrays["surplus"] = np.zeros(2)
    with pytest.raises(ValueError, match="4 problems") as error:
        load(model, write_checkpoint(tmp_path / "broken.npz", arrays))
    for word in ("17 rows", "class_token", "head/bias", "surplus"):
        assert word in str(error.value)


def test_other_numerics_are_refused(google, timm):
    builder, path, _ = google
    model = builder(weights=path)
    before = values(model)
    with pytest.raises(ValueError, match="activation gelu .the model has gelu_tanh.*resampling"):
        load(model, timm[1])
    assert_same(values(model), before)


def test_two_loads_predict_the_same_bits(google):
    builder, path, _ = google
    images = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3))
    a, b = (run(builder(weights=path, name=n), images) for n in "ab")
    np.testing.assert_array_equal(a, b)


def test_another_architecture_is_named(google):
    _, path, _ = google
    with pytest.raises(ValueError, match=r"another architecture.*patch 8 \(expected 16\)") as error:
        keras_vit.ViT_B16(weights=path)
    assert "These are weights for Small." in str(error.value)


def test_unknown_names(google, tmp_path):
    builder, _, _ = google
    path = tmp_path / "other.npz"
    np.savez(path, something=np.zeros(3))
    with pytest.raises(ValueError, match="none of the known checkpoint formats.*something"):
        builder(weights=path)


def test_classes_must_be_those_of_the_file(google):
    builder, path, _ = google
    with pytest.raises(
        ValueError, match="`classes` should be 7. Received classes=5.*pretrained_top"
    ):
        builder(weights=path, classes=5)


def test_new_head_on_the_same_body(google):
    builder, path, _ = google
    whole = values(builder(weights=path))
    model = builder(weights=path, classes=5, pretrained_top=False)
    for name, value in values(model).items():
        if "_head/" in name:
            assert not value.any() and value.shape[-1] == 5
        else:
            np.testing.assert_array_equal(value, whole[name])


@pytest.mark.parametrize("pooling", ["token", None])
def test_without_a_head_the_features_are_those_before_it(google, tmp_path, pooling):
    builder, path, arrays = google
    images = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3))
    whole = builder(weights=path)
    want = run(keras.Model(whole.inputs, whole.get_layer("small_head").input), images)
    bare = {k: v for k, v in arrays.items() if not k.startswith("head/")}
    for file in (path, write_checkpoint(tmp_path / "bare.npz", bare)):
        model = builder(weights=file, include_top=False, pooling=pooling)
        got = run(model, images)
        np.testing.assert_array_equal(got if pooling else got[:, 0], want)


def test_a_file_without_a_head_is_refused_with_top(google, tmp_path):
    builder, _, arrays = google
    bare = {k: v for k, v in arrays.items() if not k.startswith("head/")}
    path = write_checkpoint(tmp_path / "bare.npz", bare)
    with pytest.raises(ValueError, match="no classification head.*pretrained_top=False"):
        builder(weights=path)


def test_an_all_zero_21k_head_is_refused(google, tmp_path):
    builder, _, arrays = google
    arrays["head/kernel"] = np.zeros((32, 21843), "float32")
    arrays["head/bias"] = np.full(21843, -10.0, "float32")
    path = write_checkpoint(tmp_path / "21k.npz", arrays)
    with pytest.raises(ValueError, match="head of these weights is all zeros"):
        builder(weights=path, classes=21843)
    assert builder(weights=path, include_top=False, pooling="token").output_shape == (None, 32)
    arrays["head/kernel"][0, 5] = 1.0
    path = write_checkpoint(tmp_path / "real.npz", arrays)
    assert builder(weights=path, classes=21843).output_shape == (None, 21843)


def test_pre_logits_only_where_the_file_has_them(declare, tmp_path):
    golden = Golden("A02")
    builder = declare("Rep", config_of(golden), classes=7)
    path = write_checkpoint(tmp_path / "rep.npz", golden.weights)
    model = builder(weights=path)
    assert model.get_layer("rep_pre_logits").units == 24
    names = [layer.name for layer in builder(weights=path, pretrained_top=False).layers]
    assert "rep_pre_logits" not in names
    with pytest.raises(
        ValueError, match="representation_size contradicts.*32; the weights have 24"
    ):
        builder(weights=path, representation_size=32)
    small = declare("Small", config_of(Golden("A01")), classes=7)
    plain_file = write_checkpoint(tmp_path / "plain.npz", Golden("A01").weights)
    with pytest.raises(ValueError, match="representation_size contradicts"):
        small(weights=plain_file, representation_size=24)


def test_explicit_structure_must_agree_with_the_file(google):
    builder, path, _ = google
    with pytest.raises(ValueError, match="classifier contradicts.*'map'; the weights have 'token'"):
        builder(weights=path, classifier="map")
    with pytest.raises(ValueError, match="positions contradicts.*the weights have 'learned-1d'"):
        builder(weights=path, positions="sincos-2d")
    assert builder(weights=path, classifier="gap").output_shape == (None, 7)


def test_other_image_sizes_resample_by_the_rule_of_the_source(google):
    builder, path, arrays = google
    table = arrays["Transformer/posembed_input/pos_embedding"][0]
    for shape, grid in (((48, 48, 3), (6, 6)), ((16, 40, 3), (2, 5)), ((40, 16, 3), (5, 2))):
        model = builder(weights=path, input_shape=shape)
        want = keras_vit.resampling.resample_positions(table, (4, 4), grid, "google")
        got = next(np.array(v) for v in model.weights if v.path.endswith("/positions"))
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(got[0], table[0])
        assert load(model, path).resampled == ("patch_encoder/positions",)


def test_a_file_of_another_size_is_loaded_at_its_own(google, tmp_path):
    builder, _, arrays = google
    name = "Transformer/posembed_input/pos_embedding"
    arrays[name] = np.zeros((1, 1 + 36, 32), "float32")
    path = write_checkpoint(tmp_path / "48.npz", arrays)
    assert builder(weights=path).input_shape == (None, 48, 48, 3)


@pytest.mark.parametrize("rows", [16, 18, 19])
def test_a_table_of_an_impossible_length_is_refused(google, tmp_path, rows):
    builder, _, arrays = google
    arrays["Transformer/posembed_input/pos_embedding"] = np.zeros((1, rows, 32), "float32")
    path = write_checkpoint(tmp_path / "odd.npz", arrays)
    if rows == 16:  # a square without a row for the class token
        model = builder(weights=path)
        assert model.get_layer("small_patch_encoder").positioned_tokens == 0
        return
    with pytest.raises(ValueError, match=f"position table has {rows} rows, which is no square"):
        builder(weights=path)


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_other_channel_counts(google, channels):
    builder, path, arrays = google
    kernel = arrays["embedding/kernel"]
    model = builder(weights=path, input_shape=(32, 32, channels))
    got = next(np.array(v) for v in model.weights if "projection/kernel" in v.path)
    got = got.reshape(8, 8, channels, 32)
    if channels == 1:
        np.testing.assert_allclose(got, kernel.sum(axis=2, keepdims=True), rtol=1e-6)
    else:
        want = np.stack([kernel[:, :, c % 3] * 3 / channels for c in range(channels)], axis=2)
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_a_grey_picture_gives_the_same_scores_with_one_channel(google):
    builder, path, _ = google
    grey = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 1)).astype("float32")
    colour = run(builder(weights=path), grey.repeat(3, axis=-1))
    single = builder(weights=path, input_shape=(32, 32, 1), name="one").predict(grey, verbose=0)
    np.testing.assert_allclose(single, colour, atol=1e-5)


def test_patch_kernels_resample_on_request(google, declare, tmp_path):
    builder, path, _ = google
    config = plain.Config(
        patch=16, width=32, depth=2, heads=4, mlp=64, image=(64, 64), activation="gelu_tanh"
    )
    model = declare("Coarse", config)(weights=None, classes=7)
    with pytest.raises(ValueError, match="projection/kernel.*embedding/kernel .8, 8, 3, 32. gives"):
        load(model, path)
    load(model, path, resample_patches=True)
    kernel = next(np.array(v) for v in model.weights if "projection/kernel" in v.path)
    want = keras_vit.resampling.resample_patch_kernel(
        Golden("A01").weights["embedding/kernel"], (16, 16), "google"
    )
    np.testing.assert_allclose(kernel.reshape(16, 16, 3, 32), want, rtol=1e-6)


def test_prefixes_of_published_files(google, timm, tmp_path):
    builder, path, arrays = google
    want = values(builder(weights=path))
    for prefix in ("opt/target/", "params/", "params/img/"):
        file = write_checkpoint(
            tmp_path / f"{prefix.replace('/', '_')}.npz",
            {**{prefix + k: v for k, v in arrays.items()}},
        )
        assert_same(values(builder(weights=file)), want)


def test_own_files_at_another_size_and_in_another_model(google, tmp_path):
    builder, path, _ = google
    model = builder(weights=path)
    images = np.random.default_rng(0).uniform(0, 255, (2, 32, 32, 3))
    want = run(model, images)
    resized = values(builder(weights=path, input_shape=(48, 32, 3)))
    for file in ("own.keras", "own.weights.h5"):
        file = tmp_path / file
        (model.save if file.suffix == ".keras" else model.save_weights)(file)
        again = builder(weights=file, name="again")
        np.testing.assert_array_equal(run(again, images), want)
        larger = values(builder(weights=file, input_shape=(48, 32, 3)))
        assert_same(larger, resized)
        other = builder(weights=None, input_shape=(48, 32, 3))
        assert load(other, file).resampled == ("patch_encoder/positions",)
        assert_same(values(other), resized)
        with pytest.raises(ValueError, match="`classes` should be 7. Received classes=3"):
            builder(weights=file, classes=3)
    other.load_weights(tmp_path / "own.weights.h5")  # Keras' own loading resamples as well
    assert_same(values(other), resized)


def test_own_file_remembers_its_numerics(timm, google, tmp_path):
    builder, path, _ = timm
    file = tmp_path / "own.weights.h5"
    model = builder(weights=path)
    model.save_weights(file)
    again = builder(weights=file)
    assert again.get_layer("small_timm_block_0").mlp.activation == "gelu"
    assert_same(values(again), values(model))
    fresh = builder(weights=None)  # the family's own numerics: tanh GELU
    with pytest.raises(ValueError, match="activation gelu .the model has gelu_tanh"):
        load(fresh, file)
    with warnings.catch_warnings(), pytest.raises(ValueError, match="with activation=gelu, this"):
        warnings.simplefilter("ignore")  # Keras' own, about what it leaves out after the refusal
        fresh.load_weights(file)


def test_load_into_a_nested_model(google):
    builder, path, _ = google
    base = builder(weights=None, include_top=False, pooling="token")
    model = keras.Sequential([base, keras.layers.Dense(3)])
    load(model, path, new_head=True)
    want = values(builder(weights=path, include_top=False, pooling="token"))
    assert_same(values(base), want)


def test_a_model_without_an_encoder_is_refused(google):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    with pytest.raises(
        ValueError, match="one PatchEncoder, or with one residual network. Received: 0"
    ):
        load(model, google[1])


def test_names_and_shapes_without_the_prefix(google):
    source = loading.open_source(google[1])
    assert source.shape("cls") == (1, 1, 32)
    assert source.count("Transformer/encoderblock_{i}/LayerNorm_0/scale") == 2
