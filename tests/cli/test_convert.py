"""`keras-vit convert`"""

import keras
import numpy as np
import pytest

MODEL = ("--model", "Mini")
IMAGES = np.random.default_rng(3).integers(0, 256, (2, 28, 28, 3)).astype("float32")


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_the_copy_predicts_the_same(run, mini, tmp_path, suffix, model):
    out = tmp_path / f"out{suffix}"
    code, stdout, err = run("convert", mini, out, *MODEL)
    assert code == 0
    size = f"{model().count_params():,} parameters, images (28, 28, 3), output (10,)"
    assert stdout == f"{out}: Mini, weights {mini}; {size}\n"
    assert "40 variables loaded" in err and "resampled" not in err
    expected = model().predict(IMAGES, verbose=0)
    if suffix == ".keras":
        copy = keras.models.load_model(out)
    else:
        copy = model(weights=out)
    np.testing.assert_array_equal(copy.predict(IMAGES, verbose=0), expected)
    assert list(tmp_path.iterdir()) == [out]


def test_nothing_is_overwritten_unless_forced(run, mini, tmp_path):
    out = tmp_path / "out.keras"
    out.write_text("old")
    code, _, err = run("convert", mini, out, *MODEL)
    assert code == 2
    assert err == (
        f"keras-vit: error: The output exists already: '{out}'. Pass --force to replace it.\n"
    )
    assert out.read_text() == "old"
    assert run("convert", mini, out, *MODEL, "--force")[0] == 0
    assert keras.models.load_model(out).name == "mini"


def test_only_keras_files_are_written(run, mini, tmp_path):
    code, _, err = run("convert", mini, tmp_path / "out.npz", *MODEL)
    assert code == 2
    assert "must end with .keras or .weights.h5" in err


@pytest.mark.parametrize("error, code", [(OSError("disk full"), 2), (KeyboardInterrupt(), 130)])
def test_a_failure_leaves_nothing(run, mini, tmp_path, monkeypatch, error, code):
    def save(self, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(keras.Model, "save", save)
    assert run("convert", mini, tmp_path / "out.keras", *MODEL)[0] == code
    assert list(tmp_path.iterdir()) == []


def test_without_a_head(run, mini, tmp_path, model):
    out = tmp_path / "out.keras"
    assert run("convert", mini, out, *MODEL, "--no-top")[1].endswith("output (50, 16)\n")
    expected = model(include_top=False).predict(IMAGES, verbose=0)
    found = keras.models.load_model(out).predict(IMAGES, verbose=0)
    np.testing.assert_array_equal(found, expected)
    code, _, err = run("convert", mini, out, *MODEL, "--no-top", "--classes", 3, "--force")
    assert code == 2
    assert "pass --no-top or --classes" in err


@pytest.mark.parametrize("classes, new", [(10, False), (3, True)])
def test_the_number_of_classes(run, mini, tmp_path, classes, new):
    out = tmp_path / "out.keras"
    code, _, err = run("convert", mini, out, *MODEL, "--classes", classes)
    head = keras.models.load_model(out).get_layer("mini_head")
    assert code == 0
    assert ("2 new" in err) is new
    assert head.units == classes
    assert bool(np.any(head.kernel)) is not new


def test_another_image_size(run, mini, tmp_path, model):
    out = tmp_path / "out.keras"
    _, stdout, err = run("convert", mini, out, *MODEL, "--image-size", "32x40")
    assert "images (32, 40, 3)" in stdout
    assert "positions resampled" in err
    images = np.random.default_rng(4).integers(0, 256, (1, 32, 40, 3)).astype("float32")
    expected = model(input_shape=(32, 40, 3))
    np.testing.assert_array_equal(
        keras.models.load_model(out).predict(images, verbose=0), expected.predict(images, verbose=0)
    )


def test_weights_of_another_model(run, mini, tmp_path):
    code, _, err = run("convert", mini, tmp_path / "out.keras", "--model", "ViT_Ti16")
    assert code == 2
    assert "These are weights for Mini.\n" in err


def test_a_file_that_is_no_checkpoint(run, tmp_path):
    (tmp_path / "page.npz").write_text("<html>Sign in</html>")
    code, _, err = run("convert", tmp_path / "page.npz", tmp_path / "out.keras", *MODEL)
    assert code == 2
    assert err.startswith("keras-vit: error: ")
    assert "page.npz" in err
