"""Checkpoint files of every container, read lazily and without ever executing what they hold."""

from keras_vit.weights.readers.base import Checkpoint, CheckpointError
from keras_vit.weights.readers.detect import read

__all__ = ["Checkpoint", "CheckpointError", "read"]
