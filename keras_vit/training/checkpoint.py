"""The whole state of a training in one file, written at once."""

import os
import zipfile

import keras
import numpy as np

from keras_vit import distribution
from keras_vit.files import replacing


def save_state(path, model, epoch):
    """Writes weights, optimizer, random states and epoch; a kill at any moment leaves a whole file.

    Args:
        path: of the file, .npz.
        model: compiled, its optimizer built.
        epoch: number of epochs done.
    """
    variables = _variables(model)
    with replacing(path) as partial, open(partial, "wb") as file:
        np.savez(
            file,
            epoch=np.int64(epoch),
            names=np.array(list(variables)),
            **{f"v{k}": keras.ops.convert_to_numpy(v) for k, v in enumerate(variables.values())},
        )
        file.flush()
        os.fsync(file.fileno())


def load_state(path, model):
    """Puts a model where `save_state` left it; that of every process where process 0 was.

    Args:
        path: of the file; without one nothing is done.
        model: compiled, of the same architecture and optimizer.

    Returns:
        The number of epochs done.

    Raises:
        ValueError: the file is damaged, or of another model or optimizer; the model is untouched.
    """
    variables = _variables(model)
    if os.path.exists(path):
        epoch, values = _read(path, variables)
    else:
        epoch, values = 0, [keras.ops.convert_to_numpy(v) for v in variables.values()]
    # Processes may have stopped apart, and all of them must assign the same values.
    epoch, *values = distribution.of_first([np.int32(epoch), *values])
    if epoch:
        for variable, value in zip(variables.values(), values, strict=True):
            variable.assign(value)
    return int(epoch)


def _read(path, variables):
    """(epoch, values) of a file for these variables."""
    try:
        with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
            names = [str(name) for name in file["names"]]
            epoch = int(file["epoch"])
            values = [file[f"v{k}"] for k in range(len(names))]
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"The state of the training cannot be read: {path}: {error}") from error
    expected = [(name, tuple(v.shape)) for name, v in variables.items()]
    found = [(name, value.shape) for name, value in zip(names, values, strict=True)]
    if found != expected:
        wrong = next(
            (pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]),
            (f"{len(found)} variables", f"{len(expected)} variables"),
        )
        raise ValueError(
            f"{path} is the state of another model or optimizer. "
            f"Received: {wrong[0]}, expected {wrong[1]}. Resume with the options of the first start."
        )
    return epoch, values


def _variables(model):
    """Weights, states of the random generators, and the optimizer's own, by name, in a fixed order."""
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    own = {variable.path: variable for variable in model.weights}
    seeds = [v for v in model.variables if "seed_generator_state" in v.path]
    # Keras numbers generators and optimizers through the whole process.
    others = enumerate([*seeds, *model.optimizer.variables])
    return own | {f"{k}/{variable.path.split('/')[-1]}": variable for k, variable in others}
