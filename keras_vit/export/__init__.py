"""Models for servers and devices: SavedModel, ONNX, LiteRT."""

from keras_vit.export.servable import saved_model as saved_model
