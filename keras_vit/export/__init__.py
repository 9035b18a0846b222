"""Models for servers and devices: SavedModel, ONNX, LiteRT."""

from keras_vit.export.litert_file import litert as litert
from keras_vit.export.onnx_file import onnx as onnx
from keras_vit.export.precision import float32_copy as float32_copy
from keras_vit.export.servable import saved_model as saved_model
