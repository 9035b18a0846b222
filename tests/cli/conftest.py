"""Pictures, and a small model with random weights in a file."""

import functools
import io

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit import cli, registry
from keras_vit.models import plain


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    """Path of weights for `Mini`, a model of 28x28 pixels with a named set "named", declared here.

    Its predictions differ from picture to picture.
    """
    config = plain.Config(patch=4, width=16, depth=2, heads=2, mlp=32, image=(28, 28))
    row = registry.Weights(
        "named",
        "https://127.0.0.1/mini.npz",
        classes=10,
        image=(28, 28),
        statistics="half",
        crop_fraction=0.7,
        licence="",
        origin="",
        labels=tuple(f"label {k}" for k in range(10)),
    )
    function = registry.variant(
        "Mini", config, plain.build, parameters=0, weights=(row,), classes=10
    )
    keras.utils.set_random_seed(1)
    built = function(weights=None)
    for variable in built.layers[-2].weights:
        variable.assign(keras.random.normal(variable.shape))
    path = tmp_path_factory.mktemp("mini") / "mini.weights.h5"
    built.save_weights(path)
    yield path
    registry.discard("Mini")


@pytest.fixture
def model(mini):
    """The function of that model, by default with those weights."""
    return functools.partial(registry.get_variant("Mini").function, weights=mini)


@pytest.fixture
def photos(tmp_path):
    """A folder with 1.png, 10.jpg and 2.webp, none of them of the size of a model."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(2)
    for name, size in (("1.png", (40, 30)), ("10.jpg", (28, 64)), ("2.webp", (90, 90))):
        coarse = random.integers(0, 256, (5, 5, 3), "uint8")
        Image.fromarray(coarse).resize(size).save(folder / name)
    return folder


@pytest.fixture
def damaged(photos):
    """The same folder with four files that are no pictures, and one that does not claim to be."""
    jpeg = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(jpeg, "JPEG")
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "half.jpg").write_bytes(jpeg.getvalue()[: len(jpeg.getvalue()) // 2])
    (photos / "page.jpg").write_bytes(b"<!DOCTYPE html><html>Sign in</html>")
    (photos / "short.png").write_bytes((photos / "1.png").read_bytes()[:40])
    (photos / "notes.txt").write_text("not a picture")
    return photos


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs the program in this process: run(*arguments) -> (exit code, stdout, stderr)."""
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.delenv("KERAS_VIT_DEBUG", raising=False)

    def function(*arguments):
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return function
