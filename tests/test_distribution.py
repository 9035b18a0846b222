import os
import pathlib
import subprocess
import sys

import keras
import pytest

from keras_vit import distribution
from keras_vit.models import plain

CONFIG = plain.Config(patch=8, width=32, depth=2, heads=4, mlp=64, image=(32, 32))

SHARDED = """
import dataclasses
import keras
import numpy as np
from keras_vit import distribution
from keras_vit.models import plain

config = plain.Config(patch=8, width=32, depth=2, heads=4, mlp=64, image=(32, 32))
for part in ({}, {"attention": plain.re_attention}, {"feed_forward": plain.swiglu}):
    keras.distribution.set_distribution(None)
    model = plain.model(dataclasses.replace(config, **part), classes=10, classifier_activation=None)
    random = np.random.default_rng(0)
    model.set_weights([np.abs(random.normal(0, 0.1, w.shape)) for w in model.weights])
    images = random.integers(0, 256, (8, 32, 32, 3)).astype("float32")
    expected = model.predict(images, verbose=0)
    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    copy = distribution.sharded(model, mesh)
    print("difference", np.abs(copy.predict(images, verbose=0) - expected).max())
    blocks = [w for w in copy.weights if "_block_" in w.path]
    whole = sum(w.value.size for w in blocks)
    held = sum(w.value.addressable_shards[0].data.size for w in blocks)
    print("share", held / whole)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    copy.compile("sgd", loss)
    model_loss = copy.fit(images, np.arange(8), batch_size=8, verbose=0).history["loss"][0]
    assert np.isfinite(model_loss)
"""


def run(program, *arguments, backend="jax"):
    """What a program prints in a process of its own, with virtual CPU devices and JAX."""
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        cwd=pathlib.Path(__file__).parents[1],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_sharded_blocks_compute_the_same_and_hold_a_quarter():
    lines = [line.split() for line in run(SHARDED).splitlines()]
    assert [name for name, _ in lines] == ["difference", "share"] * 3
    for name, value in lines:
        assert float(value) < {"difference": 1e-5, "share": 0.3}[name]


class Mesh:
    """The names and sizes of a `DeviceMesh`, which needs its devices."""

    def __init__(self, shape, axis_names):
        self.shape, self.axis_names = shape, axis_names


def test_errors():
    model = plain.model(CONFIG, classes=3)
    with pytest.raises(ValueError, match="axis called 'model'"):
        distribution.layout_map(model, Mesh((8,), ("batch",)))
    with pytest.raises(ValueError, match="3 devices, 4 heads in vit_block_0"):
        distribution.layout_map(model, Mesh((1, 3), ("batch", "model")))
    with pytest.raises(ValueError, match="Only models of transformer blocks"):
        distribution.layout_map(keras.Sequential([keras.Input((3,))]), Mesh((1,), ("model",)))


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="is about the other backends")
def test_another_backend_is_named():
    with pytest.raises(ValueError, match="backend 'tensorflow'. Set KERAS_BACKEND=jax"):
        distribution.start("localhost:1234", 0, 2)


def test_process_numbers(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match="process_id=2, processes=2"):
        distribution.start("localhost:1234", 2, 2)


MIRRORED = """
import sys
import keras
import numpy as np
import tensorflow as tf

from keras_vit import distribution
from keras_vit.models import plain

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
config = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 16))
random = np.random.default_rng(0)
images = random.integers(0, 256, (10, 16, 16, 3)).astype("float32")  # the last batch has 2


def losses():
    keras.utils.set_random_seed(0)
    model = plain.model(config, classes=3, classifier_activation=None)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(
        images, np.arange(10) % 3, batch_size=4, epochs=3, shuffle=False, verbose=0
    )
    return history.history["loss"]


single = losses()
stored = plain.model(config, classes=3)
stored.save_weights(sys.argv[1] + "/stored.weights.h5")
with distribution.data_parallel() as devices:
    parallel = losses()
    loaded = plain.model(config, classes=3, weights=sys.argv[1] + "/stored.weights.h5")
    for a, b in zip(loaded.get_weights(), stored.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)

print(devices, np.abs(np.subtract(single, parallel)).max())
"""

DATA_PARALLEL = """
import keras
import numpy as np

from keras_vit import distribution
from keras_vit.models import plain

config = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 16))
images = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3)).astype("float32")


def losses():
    keras.utils.set_random_seed(0)
    model = plain.model(config, classes=3, classifier_activation=None)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(images, np.arange(16) % 3, batch_size=8, epochs=3, shuffle=False, verbose=0)
    return history.history["loss"]


single = losses()
with distribution.data_parallel() as devices:
    parallel = losses()
print(devices, np.abs(np.subtract(single, parallel)).max())
"""


@pytest.mark.parametrize(
    ("program", "backend", "devices"), [(MIRRORED, "tensorflow", 2), (DATA_PARALLEL, "jax", 8)]
)
def test_a_divided_batch_gives_the_same_loss(program, backend, devices, tmp_path):
    found, difference = run(program, str(tmp_path), backend=backend).split()
    assert int(found) == devices and float(difference) < 1e-5


FINE_TUNED = """
import pathlib
import sys
import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit import registry
from keras_vit.models import plain
from keras_vit.training.fine_tuning import finetune
from keras_vit.training.settings import Settings

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
config = plain.Config(patch=8, width=16, depth=2, heads=2, mlp=32, image=(16, 16))
registry.variant("Tiny", config, plain.build, parameters=0)
random = np.random.default_rng(0)
for label in "ab":
    folder = pathlib.Path(sys.argv[1], "pictures", label)
    folder.mkdir(parents=True)
    for k in range(6):
        picture = random.integers(0, 256, (16, 16, 3)).astype("uint8")
        Image.fromarray(picture).save(folder / f"{k}.png")
settings = Settings(
    data=str(folder.parent), model="Tiny", recipe="augreg-scratch", epochs=1, batch_size=4,
    distribute="data", xla=True,
)
finetune(settings, pathlib.Path(sys.argv[1], "run"), verbose=0)
"""


def test_fine_tuning_on_the_devices_of_tensorflow(tmp_path):
    assert "XLA off" in run(FINE_TUNED, str(tmp_path), backend="tensorflow")  # it compiles for one
    assert (tmp_path / "run" / "best.keras").exists()
