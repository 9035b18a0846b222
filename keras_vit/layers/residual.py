"""The residual stages of the hybrids (norms after the convolutions) and of Big Transfer (before)."""

import keras
from keras import ops

from keras_vit.layers.convolution import GroupNorm, StandardizedConv2D
from keras_vit.layers.stem import padded

EXPANSION = 4  # channels of a unit's output per channel inside it


@keras.saving.register_keras_serializable(package="keras_vit")
class BottleneckUnit(keras.layers.Layer):
    """Residual unit that normalises after its convolutions: relu(shortcut + branch).

        branch = norm(conv1x1(relu(norm(conv3x3(relu(norm(conv1x1(x))))))))

    The shortcut is x; where channels or size change, norm(conv1x1(x)).

    Shapes: input (B, H, W, C); output (B, ceil(H / stride), ceil(W / stride), 4 * filters).

    Args:
        filters: channels inside the unit.
        stride: of the 3x3 convolution and of the shortcut, 1 or 2.
        groups: of the norms; must divide `filters`.
        epsilon: of the norms.
        standardization: of the kernels, see `StandardizedConv2D`.

    Weights: conv_1, conv_2, conv_3 and, if the shortcut has one, projection: each a kernel; norm_1,
        norm_2, norm_3, projection_norm: each gamma and beta. The gamma of norm_3 starts at 0.
    Source: vit_jax/models_resnet.py, ResidualUnit.
    """

    def __init__(
        self, filters, stride=1, groups=32, epsilon=1e-6, standardization="google", **kwargs
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.stride = stride
        self.groups = groups
        self.epsilon = epsilon
        self.standardization = standardization

    def build(self, input_shape):
        channels, inner, outer = input_shape[-1], self.filters, EXPANSION * self.filters
        self.conv_1 = self._conv("conv_1", channels, inner)
        self.norm_1 = self._norm("norm_1", inner)
        self.conv_2 = self._conv("conv_2", inner, inner, 3, self.stride)
        self.norm_2 = self._norm("norm_2", inner)
        self.conv_3 = self._conv("conv_3", inner, outer)
        self.norm_3 = self._norm("norm_3", outer, gamma_initializer="zeros")
        self.projection = None
        if self._has_projection(channels):
            self.projection = self._conv("projection", channels, outer, 1, self.stride)
            self.projection_norm = self._norm("projection_norm", outer)

    def _has_projection(self, channels):
        return self.stride != 1 or channels != EXPANSION * self.filters

    def _conv(self, name, channels, filters, size=1, stride=1, padding="same"):
        conv = StandardizedConv2D(
            filters,
            size,
            strides=stride,
            padding=padding,
            use_bias=False,
            standardization=self.standardization,
            kernel_initializer="lecun_normal",
            data_format="channels_last",
            dtype=self.dtype_policy,
            name=name,
        )
        conv.build((None, None, None, channels))
        return conv

    def _norm(self, name, channels, **options):
        norm = GroupNorm(
            self.groups, epsilon=self.epsilon, dtype=self.dtype_policy, name=name, **options
        )
        norm.build((None, None, None, channels))
        return norm

    def call(self, inputs):
        x = ops.relu(self.norm_1(self.conv_1(inputs)))
        x = ops.relu(self.norm_2(self.conv_2(x)))
        x = self.norm_3(self.conv_3(x))
        shortcut = inputs
        if self.projection is not None:
            shortcut = self.projection_norm(self.projection(inputs))
        return ops.relu(shortcut + x)

    def compute_output_shape(self, input_shape):
        return _output_shape(input_shape, self.stride, self.filters)

    def get_config(self):
        return {**super().get_config(), "filters": self.filters, **_numbers(self)}


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationUnit(BottleneckUnit):
    """Residual unit that normalises before its convolutions: shortcut + branch.

        y = relu(norm(x))
        branch = conv1x1(relu(norm(conv3x3(relu(norm(conv1x1(y)))))))

    The shortcut is x; where channels or size change, conv1x1(y). Convolutions pad with as many zeros
    at the beginning as at the end.

    Shapes and arguments: as `BottleneckUnit`; `groups` must also divide C.

    Weights: norm_1, norm_2, norm_3: each gamma and beta; conv_1, conv_2, conv_3 and, if the shortcut
        has one, projection: each a kernel.
    Source: big_transfer bit_pytorch/models.py, PreActBottleneck.
    """

    def build(self, input_shape):
        channels, inner, outer = input_shape[-1], self.filters, EXPANSION * self.filters
        self.norm_1 = self._norm("norm_1", channels)
        self.conv_1 = self._conv("conv_1", channels, inner)
        self.norm_2 = self._norm("norm_2", inner)
        self.conv_2 = self._conv("conv_2", inner, inner, 3, self.stride, "valid")
        self.norm_3 = self._norm("norm_3", inner)
        self.conv_3 = self._conv("conv_3", inner, outer)
        self.projection = None
        if self._has_projection(channels):
            self.projection = self._conv("projection", channels, outer, 1, self.stride)

    def call(self, inputs):
        y = ops.relu(self.norm_1(inputs))
        x = ops.relu(self.norm_2(self.conv_1(y)))
        x = ops.relu(self.norm_3(self.conv_2(padded(x, 1))))
        shortcut = inputs if self.projection is None else self.projection(y)
        return shortcut + self.conv_3(x)


@keras.saving.register_keras_serializable(package="keras_vit")
class ResidualStage(keras.layers.Layer):
    """Stage of a hybrid's stem: `BottleneckUnit`s, of which the first has the stride.

    Shapes: input (B, H, W, C); output (B, ceil(H / stride), ceil(W / stride), 4 * filters).

    Args:
        units: number of units.
        filters: channels inside the units.
        stride: of the first unit, 1 or 2.
        groups: of the norms; must divide `filters`.
        epsilon: of the norms.
        standardization: of the kernels, see `StandardizedConv2D`.

    Weights: those of unit_1, unit_2, ...
    Source: vit_jax/models_resnet.py, ResNetStage.
    """

    unit = BottleneckUnit

    def __init__(
        self, units, filters, stride=1, groups=32, epsilon=1e-6, standardization="google", **kwargs
    ):
        super().__init__(**kwargs)
        self.units = units
        self.filters = filters
        self.stride = stride
        self.groups = groups
        self.epsilon = epsilon
        self.standardization = standardization
        for u in range(1, units + 1):
            numbers = {**_numbers(self), "stride": stride if u == 1 else 1}
            unit = self.unit(filters, **numbers, dtype=self.dtype_policy, name=f"unit_{u}")
            setattr(self, unit.name, unit)

    def _units(self):
        return [getattr(self, f"unit_{u}") for u in range(1, self.units + 1)]

    def build(self, input_shape):
        for unit in self._units():
            unit.build(input_shape)
            input_shape = unit.compute_output_shape(input_shape)

    def call(self, inputs):
        x = inputs
        for unit in self._units():
            x = unit(x)
        return x

    def compute_output_shape(self, input_shape):
        return _output_shape(input_shape, self.stride, self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "filters": self.filters,
            **_numbers(self),
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationStage(ResidualStage):
    """Stage of a Big Transfer network: `PreActivationUnit`s, of which the first has the stride.

    Shapes and arguments: as `ResidualStage`; `groups` must also divide C.

    Source: big_transfer bit_pytorch/models.py.
    """

    unit = PreActivationUnit


def _numbers(layer):
    return {
        "stride": layer.stride,
        "groups": layer.groups,
        "epsilon": layer.epsilon,
        "standardization": layer.standardization,
    }


def _output_shape(input_shape, stride, filters):
    batch, *size, _ = input_shape
    size = (None if n is None else -(-n // stride) for n in size)
    return (batch, *size, EXPANSION * filters)
