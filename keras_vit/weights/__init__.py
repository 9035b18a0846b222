"""Checkpoint files: reading them, and loading them into models."""

from keras_vit.weights.loading import Report as Report
from keras_vit.weights.loading import load as load
from keras_vit.weights.readers import Checkpoint as Checkpoint
from keras_vit.weights.readers import CheckpointError as CheckpointError
from keras_vit.weights.readers import read as read
