"""What every layer of the package promises: configuration, shapes, dtypes, gradients, reloading."""

import importlib
import inspect
import json
import pkgutil

import keras
import numpy as np
import pytest
from keras import ops
from numpy_reference import randomise

import keras_vit.layers
from keras_vit.layers import (
    AttentionPooling,
    BottleneckUnit,
    ConvStem,
    DropPath,
    GroupNorm,
    LayerScale,
    Mlp,
    MultiHeadSelfAttention,
    Normalize,
    PatchDropout,
    PatchEncoder,
    Patches,
    PoolPatches,
    PreActivationStage,
    PreActivationUnit,
    ReAttention,
    ResidualStage,
    StandardizedConv2D,
    SwiGLU,
    TakeToken,
    TokensToGrid,
    TransformerBlock,
)
from keras_vit.layers.quantized import QuantizedParts


def attention_pooling(dtype):
    return AttentionPooling(2, Mlp(6, name="mlp", dtype=dtype), dtype=dtype)


def block(mlp=Mlp, attention=MultiHeadSelfAttention, **options):
    make_attention = attention

    def make(dtype):
        attention = make_attention(2, name="attention", dtype=dtype)
        return TransformerBlock(attention, mlp(6, name="mlp", dtype=dtype), dtype=dtype, **options)

    return make


def of(layer, *args, **options):
    return lambda dtype: layer(*args, dtype=dtype, **options)


IMAGES, TOKENS, PATCHES, MAPS = (4, 6, 3), (7, 8), (6, 12), (5, 6, 8)
# what is tested: how the layer is made, given its dtype; the shapes of its inputs without the batch
ROWS = {
    "Patches": (of(Patches, 2), IMAGES),
    "Patches of one pixel": (of(Patches, 1), IMAGES),
    "PatchEncoder": (of(PatchEncoder, 8, (2, 3)), PATCHES),
    "PatchEncoder with images": (of(PatchEncoder, 8, (3, 3)), PATCHES, IMAGES),
    "PatchEncoder with registers": (
        of(PatchEncoder, 8, (2, 3), tokens=("class", "distillation"), registers=2),
        PATCHES,
    ),
    "PatchEncoder without tokens": (of(PatchEncoder, 8, (2, 3), tokens=()), PATCHES),
    "PatchEncoder learned-2d": (of(PatchEncoder, 8, (2, 3), positions="learned-2d"), PATCHES),
    "PatchEncoder sincos-2d": (of(PatchEncoder, 8, (2, 3), positions="sincos-2d"), PATCHES),
    "PatchEncoder none": (of(PatchEncoder, 8, (2, 3), positions="none", dropout=0.1), PATCHES),
    "MultiHeadSelfAttention": (
        of(MultiHeadSelfAttention, 2, dropout=0.1, output_dropout=0.2),
        TOKENS,
    ),
    "MultiHeadSelfAttention normed": (
        of(MultiHeadSelfAttention, 2, use_bias=False, query_key_epsilon=1e-6),
        TOKENS,
    ),
    "ReAttention": (of(ReAttention, 2, dropout=0.1, scale=0.5), TOKENS),
    "ReAttention layer": (of(ReAttention, 4, "layer"), TOKENS),
    "ReAttention none": (of(ReAttention, 2, "none", use_bias=False), TOKENS),
    "AttentionPooling": (attention_pooling, TOKENS),
    "Mlp": (of(Mlp, 6, dropout=0.1), TOKENS),
    "Mlp gelu_tanh": (of(Mlp, 6, activation="gelu_tanh"), TOKENS),
    "SwiGLU": (of(SwiGLU, 6, dropout=0.1), TOKENS),
    "TransformerBlock": (block(drop_path=0.1), TOKENS),
    "TransformerBlock with SwiGLU": (
        block(SwiGLU, layer_scale=0.1, epsilon=1e-5, gradient_checkpointing=True),
        TOKENS,
    ),
    "TransformerBlock with ReAttention": (
        block(attention=ReAttention, scale_adjustment=0.5, gradient_checkpointing=True),
        TOKENS,
    ),
    "ConvStem": (of(ConvStem, 5), IMAGES),
    "StandardizedConv2D": (of(StandardizedConv2D, 5, 3, "timm", strides=2), IMAGES),
    "GroupNorm": (of(GroupNorm, 4, epsilon=1e-5), MAPS),
    "BottleneckUnit": (of(BottleneckUnit, 2, groups=2), MAPS),
    "BottleneckUnit with projection": (of(BottleneckUnit, 4, 2, groups=2), MAPS),
    "PreActivationUnit": (of(PreActivationUnit, 2, groups=2), MAPS),
    "PreActivationUnit with projection": (
        of(PreActivationUnit, 4, 2, groups=2, epsilon=1e-5, standardization="bit"),
        MAPS,
    ),
    "ResidualStage": (of(ResidualStage, 2, 4, 2, groups=2), MAPS),
    "PreActivationStage": (of(PreActivationStage, 2, 4, 2, groups=2), MAPS),
    "DropPath": (of(DropPath, 0.25, seed=3), TOKENS),
    "PatchDropout": (of(PatchDropout, 0.5, prefix=2), TOKENS),
    "LayerScale": (of(LayerScale, 0.5), TOKENS),
    "TakeToken": (of(TakeToken, 1), TOKENS),
    "PoolPatches avg": (of(PoolPatches), TOKENS),
    "PoolPatches max": (of(PoolPatches, "max", prefix=0), TOKENS),
    "PoolPatches avgmax": (of(PoolPatches, "avgmax", prefix=2), TOKENS),
    "TokensToGrid": (of(TokensToGrid, 2), TOKENS, IMAGES),
    "Normalize": (of(Normalize, (0.5, 0.4, 0.3), (0.1, 0.2, 0.3), {"size": [4, 6]}), IMAGES),
}
every_layer = pytest.mark.parametrize("row", ROWS)


def parts_of(row, dtype=None):
    """The layer of a row, not yet built, and random inputs for it."""
    make, *shapes = ROWS[row]
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=(2, *shape)).astype("float32") for shape in shapes]
    return make(dtype), inputs


def one_model_of_all():
    """A model of every row side by side, with random weights; and random inputs for it."""
    rng = np.random.default_rng(0)
    shapes = (IMAGES, TOKENS, PATCHES, MAPS)
    arrays = {str(s): rng.normal(size=(2, *s)).astype("float32") for s in shapes}
    inputs = {str(s): keras.Input(s, name=str(s)) for s in shapes}
    outputs = {
        row: make(None)(*(inputs[str(s)] for s in shapes)) for row, (make, *shapes) in ROWS.items()
    }
    return randomise(keras.Model(inputs, outputs)), arrays


def gradients(layer, inputs):
    """Gradients of one number made of all outputs: a list for the inputs, a dict for the weights."""
    shape = layer(*inputs).shape
    factors = np.random.default_rng(2).normal(size=shape).astype("float32")
    weights = layer.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tensors = [tf.constant(x) for x in inputs]
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = ops.sum(layer(*tensors) * factors)
        of_inputs, of_weights = tape.gradient(loss, (tensors, [w.value for w in weights]))
    else:
        import jax

        rest = [v.value for v in layer.non_trainable_variables]

        def loss(inputs, weights):
            outputs, _ = layer.stateless_call(weights, rest, *inputs)
            return ops.sum(outputs * factors)

        of_inputs, of_weights = jax.grad(loss, (0, 1))(inputs, [w.value for w in weights])
    return of_inputs, {w.path: g for w, g in zip(weights, of_weights, strict=True)}


def test_every_layer_has_a_row():
    found = set()
    for module in pkgutil.walk_packages(keras_vit.layers.__path__, "keras_vit.layers."):
        for _, value in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if issubclass(value, keras.layers.Layer) and value.__module__ == module.name:
                found.add(value)
    found.remove(QuantizedParts)  # a base class
    assert found == {type(make(None)) for make, *_ in ROWS.values()}
    assert {value.__name__ for value in found} <= set(dir(keras_vit.layers))


@every_layer
def test_config_round_trip(row):
    layer, inputs = parts_of(row)
    config = layer.get_config()
    arguments = inspect.signature(type(layer)).parameters
    assert set(arguments) - {"kwargs"} <= set(config)
    assert type(layer).from_config(json.loads(json.dumps(config))).get_config() == config

    layer(*inputs)
    assert layer.get_config() == config
    data = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    assert data["registered_name"] == f"keras_vit>{type(layer).__name__}"
    assert keras.saving.deserialize_keras_object(data).get_config() == config


@every_layer
def test_output_shape(row):
    layer, inputs = parts_of(row)
    shapes = [x.shape[1:] for x in inputs]
    expected = tuple(layer.compute_output_shape(*((None, *shape) for shape in shapes)))
    if isinstance(layer, PatchDropout):  # the number of tokens depends on `training`
        assert expected == (None, None, 8)
        expected = (None, *shapes[0])
    for batch in (1, 3):
        outputs = layer(*(np.ones((batch, *shape), "float32") for shape in shapes))
        assert tuple(outputs.shape) == (batch, *expected[1:])


@every_layer
@pytest.mark.parametrize("policy", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_dtype_policies(row, policy):
    layer, inputs = parts_of(row, policy)
    outputs = layer(*inputs)
    assert keras.backend.standardize_dtype(outputs.dtype) == layer.compute_dtype
    assert layer.compute_dtype == policy.removeprefix("mixed_")
    assert {w.dtype for w in layer.weights} <= {"float32"}
    assert np.isfinite(ops.convert_to_numpy(ops.cast(outputs, "float32"))).all()

    symbolic = layer(*(keras.Input(x.shape[1:]) for x in inputs))
    assert symbolic.dtype == layer.compute_dtype


@every_layer
def test_build_creates_every_weight(row):
    layer, inputs = parts_of(row)
    layer(*(keras.Input(x.shape[1:]) for x in inputs))
    before = [w.path for w in layer.weights]
    layer(*inputs)
    assert [w.path for w in layer.weights] == before


@every_layer
def test_everything_receives_a_gradient(row):
    layer, inputs = parts_of(row)
    layer(*inputs)
    for weight in layer.weights:
        if weight.name == "gamma":  # some start at 0, and nothing before them would receive one
            weight.assign(np.ones(weight.shape))
    of_inputs, of_weights = gradients(layer, inputs)
    assert np.abs(of_inputs[0]).max() > 0
    # adding one vector to all keys shifts all logits of a query alike, which softmax ignores
    shift = "key_norm/beta" if any("key_norm" in path for path in of_weights) else "key/bias"
    for path, gradient in of_weights.items():
        assert gradient is not None, path
        size = np.abs(gradient).max()
        assert size < 1e-5 if path.endswith(shift) else size > 1e-5, path


def test_reloaded_model_is_the_same(tmp_path):
    model, inputs = one_model_of_all()
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    paths = [w.path for w in model.weights]
    assert [w.path for w in again.weights] == paths
    assert len(set(paths)) == len(paths)
    assert again.count_params() == model.count_params()
    for ours, theirs in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    expected, outputs = model(inputs), again(inputs)
    for row in ROWS:
        np.testing.assert_array_equal(outputs[row], expected[row], row)


def test_compiled_as_eager():
    model, inputs = one_model_of_all()
    eager = model(inputs)
    model.compile(jit_compile=True)
    compiled = model.predict(inputs, verbose=0)
    for row in ROWS:
        np.testing.assert_allclose(compiled[row], eager[row], 1e-5, 1e-4, err_msg=row)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_training_under_a_mixed_global_policy(policy):
    keras.config.set_dtype_policy(policy)
    images = keras.Input((None, None, 3))
    encoder = PatchEncoder(8, (2, 2), registers=1, resampling="timm", dropout=0.1)
    x = encoder(Patches(4)(images), images)
    x = block(layer_scale=0.1, drop_path=0.1)(None)(x)
    model = keras.Model(images, keras.layers.Dense(2, dtype="float32")(TakeToken()(x)))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=128.0)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    pictures = np.random.default_rng(0).normal(size=(4, 12, 8, 3)).astype("float32")
    model.fit(pictures, np.array([0, 1, 0, 1]), epochs=1, verbose=0)
    assert {w.dtype for w in model.weights} == {"float32"}
    assert all(np.isfinite(w).all() for w in model.get_weights())
    changed = [not np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True)]
    assert sum(changed) >= len(changed) - 1  # all but perhaps the key's bias
