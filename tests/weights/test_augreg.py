"""AugReg files by their own names."""

import numpy as np
import pytest
from golden_files import Golden, config_of, write_checkpoint

import keras_vit
from keras_vit.weights import augreg
from keras_vit.weights.fetch import cache_path

PRETRAINED = "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"
TUNED = f"{PRETRAINED}--imagenet2012-steps_20k-lr_0.01-res_384"


@pytest.mark.parametrize(
    "name, classes, size, crop",
    [
        (PRETRAINED, 21843, 224, 0.9),
        (TUNED, 1000, 384, 1.0),
        (PRETRAINED.replace("i21k", "i1k"), 1000, 224, 0.9),
        (f"{PRETRAINED}--cifar100-steps_10k-lr_0.01-res_224", 100, 224, 0.9),
    ],
)
def test_the_name_says_what_is_in_the_file(name, classes, size, crop):
    row = augreg.weights_of("ViT_B16", f"augreg/{name}.npz")
    assert row.url == f"https://storage.googleapis.com/vit_models/augreg/{name}.npz"
    assert (row.classes, row.image, row.crop_fraction) == (classes, (size, size), crop)


def test_errors():
    with pytest.raises(ValueError, match="ViT_L16: this AugReg file belongs to ViT_B16"):
        keras_vit.ViT_L16(weights=f"augreg/{TUNED}")
    with pytest.raises(ValueError, match="Not the name of an AugReg file. Received: 'B_16'"):
        keras_vit.ViT_B16(weights="augreg/B_16")
    with pytest.raises(ValueError, match="number of classes.*task 'eurosat'"):
        keras_vit.ViT_B16(weights=f"augreg/{PRETRAINED}--eurosat-steps_1k-lr_0.01-res_224")


def test_the_file_is_checked_against_its_name(declare, monkeypatch, tmp_path):
    """A file put into the cache by hand, as the offline error says, with other contents than its name."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    golden = Golden("A01")
    builder = declare("Little", config_of(golden))
    monkeypatch.setitem(augreg._MODELS, "B_16", "Little")
    arrays = dict(golden.weights)
    path = cache_path(augreg.weights("x", TUNED).url)
    path.parent.mkdir(parents=True)
    write_checkpoint(path, arrays)
    with pytest.raises(ValueError, match="not what its name says: expected 1000 classes and 2305"):
        builder(weights=f"augreg/{TUNED}")
    arrays["head/kernel"] = np.ones((32, 1000), "float32")
    arrays["head/bias"] = np.ones(1000, "float32")
    arrays["Transformer/posembed_input/pos_embedding"] = np.ones((1, 2305, 32), "float32")
    write_checkpoint(path, arrays)
    model = builder(weights=f"augreg/{TUNED}")
    assert model.input_shape == (None, 384, 384, 3)
    assert keras_vit.recipe_of(model).crop_fraction == 1.0
