"""What a served model takes and gives: its signatures as TensorFlow functions."""

import keras

from keras_vit.export import decoding
from keras_vit.features import feature_extractor
from keras_vit.layers import PatchEncoder, Patches, TransformerBlock
from keras_vit.preprocessing import recipe_of

TOP = 5  # labels a picture


def outputs_of(model):
    """The model with named outputs.

    Args:
        model: a `keras.Model` with one output.

    Returns:
        A `keras.Model` that gives a dict: "logits" and "probabilities" of a model that ends in a
        dense layer or in an activation after one; "probabilities" alone if that layer holds the
        softmax itself; "features" of any other model.
    """
    last, output = model.layers[-1], model.outputs[0]
    if isinstance(last, keras.layers.Activation) and isinstance(
        model.layers[-2], keras.layers.Dense
    ):
        outputs = {"logits": last.input, "probabilities": output}
    elif not isinstance(last, keras.layers.Dense):
        outputs = {"features": output}
    elif last.activation is keras.activations.linear:
        softmax = keras.layers.Softmax(dtype="float32", name="probabilities")
        outputs = {"logits": output, "probabilities": softmax(output)}
    else:
        outputs = {"probabilities": output}
    return keras.Model(model.inputs[0], outputs, name=model.name)


def prediction(model, jit_compile=False):
    """The model as a TensorFlow function of images, float32 (B, H, W, 3), to float32 named outputs.

    Its graph is made once, for all signatures that compute it.
    """
    import tensorflow as tf

    named = outputs_of(model)
    images = tf.TensorSpec((None, *model.input_shape[1:3], 3), tf.float32, "images")
    return _graph(lambda images: _float32(named(images, training=False)), images, jit_compile)


def functions(model, labels, jit_compile, max_pixels):
    """The signatures that a model can have.

    Args:
        model: a model that recipe_of accepts.
        labels: str of every class in order; None for a model without classes.
        jit_compile: whether XLA compiles the model.
        max_pixels: of a picture; more are refused.

    Returns:
        dict of name -> concrete function. All outputs are float32, but for labels, indices and
        status. B is any number, also 0; (H, W) is the size of the model.

        - "serving_default": images float32 (B, H, W, 3), 0..255 -> what `outputs_of` names.
        - "serving_uint8": the same of uint8 images.
        - "serving_bytes": image_bytes string (B,) -> the same, status string (B,), and of a model
          with classes scores, labels and indices (B, k) of the k = min(5, classes) best.
        - "features": images -> tokens (B, N, D) after the final norm, pooled (B, D), what the head
          reads. Only of a model with transformer blocks.
        - "attention": images -> attention (B, depth, heads, h, w), from the class token to the
          patches. Only of one that has a class token, too.
    """
    import tensorflow as tf

    predict = prediction(model, jit_compile)
    (images,) = predict.input_signature

    def serve(images):
        return predict(tf.cast(images, tf.float32))

    def serve_bytes(image_bytes):
        pixels, status = decoding.pictures(image_bytes, recipe_of(model), max_pixels)
        outputs = _blanked(serve(pixels), status == decoding.OK)
        if "probabilities" in outputs:
            outputs |= _best(outputs["probabilities"], status == decoding.OK, labels)
        return {**outputs, "status": status}

    signatures = {
        "serving_default": _signature(serve, images),
        "serving_uint8": _signature(serve, tf.TensorSpec(images.shape, tf.uint8, "images")),
        "serving_bytes": _signature(serve_bytes, tf.TensorSpec((None,), tf.string, "image_bytes")),
    }
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if blocks:
        features = _graph(_features(model), images, jit_compile)
        signatures["features"] = _signature(lambda images: _float32(features(images)), images)
    encoder = next((layer for layer in model.layers if isinstance(layer, PatchEncoder)), None)
    if blocks and encoder is not None and "class" in encoder.tokens:
        attention = _graph(_attention(model, blocks, encoder), images, jit_compile)
        signatures["attention"] = _signature(
            lambda images: {"attention": tf.cast(attention(images), tf.float32)}, images
        )
    return signatures


def _graph(function, images, jit_compile):
    import tensorflow as tf

    return tf.function(
        function, input_signature=[images], jit_compile=jit_compile or None, autograph=False
    )


def _signature(function, spec):
    import tensorflow as tf

    # The name of the argument is that of the input.
    return tf.function(function, autograph=False).get_concrete_function(**{spec.name: spec})


def _float32(outputs):
    import tensorflow as tf

    return {name: tf.cast(value, tf.float32) for name, value in outputs.items()}


def _blanked(outputs, good):
    """Zeros where there was no picture."""
    import tensorflow as tf

    def blanked(value):
        where = tf.reshape(good, (-1, *[1] * (value.shape.rank - 1)))
        return tf.where(where, value, 0.0)

    return {name: blanked(value) for name, value in outputs.items()}


def _best(probabilities, good, labels):
    import tensorflow as tf

    scores, indices = tf.math.top_k(probabilities, min(TOP, len(labels)))
    names = tf.where(good[:, None], tf.gather(tf.constant(labels), indices), "")
    return {"scores": scores, "indices": indices, "labels": names}


def _features(model):
    """Function of images -> tokens after the last block, and what the head reads."""
    after_pooling = not any(layer.name.endswith("encoder_norm") for layer in model.layers)
    tokens = feature_extractor(model, [-1], normalize=not after_pooling, layout="tokens")
    (tokens,) = tokens.outputs
    head = next((x for x in model.layers if isinstance(x, keras.layers.Dense)), None)
    pooled = head.input if head is not None else model.outputs[0]
    outputs = {"tokens": tokens}
    if len(pooled.shape) == 2:
        outputs["pooled"] = pooled
    inner = keras.Model(model.inputs[0], outputs)
    return lambda images: inner(images, training=False)


def _attention(model, blocks, encoder):
    """Function of images -> what the class token attends to in every block."""
    import tensorflow as tf

    patches = next(layer for layer in model.layers if isinstance(layer, Patches))
    to_tokens = keras.Model(model.inputs[0], [blocks[0].input, patches.input])

    def attention(images):
        x, cut = to_tokens(images, training=False)
        grid = [side // patches.patch_size for side in (tf.shape(cut)[1], tf.shape(cut)[2])]
        rows = []
        for block in blocks:
            x, maps = block(x, training=False, return_attention=True)  # (B, heads, N, N)
            rows.append(maps[:, :, 0, encoder.prefix :])
        rows = tf.stack(rows, 1)  # (B, depth, heads, h * w)
        rows = tf.reshape(rows, (-1, len(blocks), blocks[0].attention.heads, *grid))
        known = (n and n // patches.patch_size for n in patches.input.shape[1:3])
        return tf.ensure_shape(rows, (None, *rows.shape[1:3], *known))

    return attention
