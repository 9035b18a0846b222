"""What the backend computes on."""

import keras


def has_accelerator():
    """Whether there is a GPU or TPU."""
    return any(not device.startswith("cpu") for device in keras.distribution.list_devices())
