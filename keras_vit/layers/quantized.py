"""Quantised sub-layers that survive saving."""

import keras


class QuantizedParts(keras.layers.Layer):
    """For layers that make sub-layers: a reloaded one has them quantised as they were saved.

    `model.quantize("int8")` changes the dense sub-layers, whose dtype policies are not in the
    configuration of the layer that owns them. They are kept with its build shapes instead, since
    sub-layers exist once it is built.
    """

    def get_build_config(self):
        config = super().get_build_config()
        modes = {
            path: part.quantization_mode for path, part in _parts(self) if part.quantization_mode
        }
        return {**config, "quantized": modes} if config and modes else config

    def build_from_config(self, config):
        modes = config.pop("quantized", {})
        super().build_from_config(config)
        parts = dict(_parts(self))
        for path, mode in modes.items():
            parts[path].quantize(mode)


def _parts(layer, prefix=""):
    """(attribute path, sub-layer) of all sub-layers, at any depth."""
    for name, value in vars(layer).items():
        if isinstance(value, keras.layers.Layer):
            yield prefix + name, value
            yield from _parts(value, f"{prefix}{name}/")
