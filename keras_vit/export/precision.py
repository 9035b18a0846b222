"""Models of half precision as models of float32."""

import keras


def float32_copy(model):
    """The model in float32, as converters need it: built from its configuration, with its weights.

    Args:
        model: a `keras.Model` of any floating dtype policy.

    Returns:
        `model` itself if all of it is float32 already, else a new model with the same weights.

    Raises:
        ValueError: the model is quantised, or its layers cannot be built from their configuration.
    """
    config = model.get_config()
    policies = set(_policies(config))
    if policies <= {"float32"}:
        return model
    if not policies <= {"float32", "float16", "bfloat16", "mixed_float16", "mixed_bfloat16"}:
        raise ValueError(
            "A quantised model cannot be brought back to float32. "
            f"Received: {model.name} with dtype policies {sorted(policies)}. Export the model it "
            "was made from."
        )
    try:
        copy = type(model).from_config(_in_float32(config))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{model.name} cannot be built from its configuration: {error} Register the classes of "
            "its layers by keras.saving.register_keras_serializable."
        ) from error
    copy.set_weights([weight.astype("float32") for weight in model.get_weights()])
    return copy


def _is_policy(value):
    return isinstance(value, dict) and str(value.get("class_name")).endswith("DTypePolicy")


def _policies(config):
    """Names of the dtype policies in a configuration."""
    if _is_policy(config):
        yield config["config"].get("name", config["class_name"])  # a quantised one has no name
    elif isinstance(config, dict | list | tuple):
        for value in config.values() if isinstance(config, dict) else config:
            yield from _policies(value)


def _in_float32(config):
    if _is_policy(config):
        return keras.saving.serialize_keras_object(keras.DTypePolicy("float32"))
    if isinstance(config, dict):
        return {key: _in_float32(value) for key, value in config.items()}
    if isinstance(config, list | tuple):
        return type(config)(_in_float32(value) for value in config)
    return config
