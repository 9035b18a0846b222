"""The options that choose a model."""

import argparse

import keras
import pytest

from keras_vit.cli import models


def test_image_size():
    assert models.image_size("224") == (224, 224)
    assert models.image_size("224x320") == (224, 320)
    with pytest.raises(argparse.ArgumentTypeError, match="not '12x'"):
        models.image_size("12x")


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_positive(text):
    assert models.positive("12") == 12
    with pytest.raises(argparse.ArgumentTypeError, match=f"not '{text}'"):
        models.positive(text)


@pytest.mark.parametrize(
    "flags, devices, backend, expected",
    [
        ("avx512f avx2", ["cpu:0"], "tensorflow", "float32"),
        ("avx512f avx512_bf16", ["cpu:0"], "tensorflow", "bfloat16"),
        ("amx_bf16", ["cpu:0"], "tensorflow", "bfloat16"),
        ("amx_bf16", ["cpu:0"], "jax", "float32"),
        (None, ["cpu:0"], "tensorflow", "float32"),
        (None, ["cpu:0", "gpu:0"], "tensorflow", "bfloat16"),
        ("avx2", ["gpu:0"], "jax", "bfloat16"),
    ],
)
def test_the_precision_that_is_fast(flags, devices, backend, expected, tmp_path, monkeypatch):
    info = tmp_path / "cpuinfo"
    if flags:
        info.write_text(f"model name : one\nflags\t\t: fpu {flags} vmx\n")
    monkeypatch.setattr(models, "CPU_INFO", info)
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: devices)
    monkeypatch.setattr(keras.config, "backend", lambda: backend)
    assert models._fast_precision() == expected
