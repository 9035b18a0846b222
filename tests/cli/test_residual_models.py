"""`convert`, `embed` and `list` of models with a residual network."""

import json

import keras
import numpy as np
import pytest
from golden_files import Golden, config_of, write_checkpoint

from keras_vit.models import plain, residual


@pytest.mark.parametrize("stem, width", [("B02", 32), ("G02", 128)])
def test_convert_and_embed(run, declare, photos, tmp_path, stem, width):
    golden = Golden(stem)
    path = write_checkpoint(tmp_path / "official.npz", golden.weights)
    if stem == "G02":
        declare("Little", residual.Config((1, 1), (32, 32), 32), build=residual.build)
    else:
        declare("Little", config_of(golden), build=plain.build)
    out = tmp_path / "own.keras"
    size = ("--image-size", 32)
    code, stdout, err = run("convert", path, out, "--model", "Little", *size)
    assert code == 0, err
    assert "images (32, 32, 3), output (7,)" in stdout
    assert keras.models.load_model(out).output_shape == (None, 7)
    features = []
    for model in (("--model", "Little", "--weights", path, *size), ("--model", out)):
        assert run("embed", photos, *model, "-o", tmp_path / "features.npz")[0] == 0
        with np.load(tmp_path / "features.npz") as arrays:
            features.append(arrays["features"])
        (tmp_path / "features.npz").unlink()
    assert features[0].shape == (3, width)
    np.testing.assert_allclose(features[0], features[1], atol=1e-5)


def test_list(run):
    code, out, _ = run("list", "BiT_R50x1", "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert row["parameters"] == 25_549_352 and row["default_weights"] == "imagenet"
    code, out, _ = run("list", "R50_B16", "--weights", "--json")
    assert [r["weights"] for r in json.loads(out)] == ["imagenet", "imagenet21k"]
