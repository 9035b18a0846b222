"""Models on several devices, by Keras' own `keras.distribution`, which needs the JAX backend.

    mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    model = keras_vit.distribution.sharded(keras_vit.ViT_L16(), mesh)
    model.fit(...)

Every device of the axis "model" holds its share of the heads and of the hidden units of each block;
the axis "batch" shares the pictures.
"""

import contextlib
import re

import keras

from keras_vit.layers import TransformerBlock

_COLUMNS = ("query", "key", "value", "hidden", "gate")  # their outputs are divided
_ROWS = ("output",)  # their inputs are divided


def start(coordinator, process_id, processes):
    """Joins this process to others on the network, before anything else of Keras is used.

    Args:
        coordinator: "HOST:PORT" of process 0.
        process_id: number of this process, from 0.
        processes: how many there are.

    Raises:
        ValueError: another backend than JAX, or a number out of its range.
    """
    _check_backend()
    if not 0 <= process_id < processes:
        raise ValueError(
            "process_id must be in 0..processes - 1. "
            f"Received: process_id={process_id}, processes={processes}."
        )
    if processes == 1:
        return
    import jax

    if jax.config.jax_platforms in (None, "cpu"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    keras.distribution.initialize(coordinator, processes, process_id)


def process():
    """Number of this process, and how many there are: (0, 1) unless `start` joined more."""
    if keras.backend.backend() != "jax":
        return 0, 1
    import jax

    return jax.process_index(), jax.process_count()


def of_first(values):
    """The arrays of process 0, in every process; all of them must call this, with equal shapes."""
    if process()[1] == 1:
        return values
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(values)


@contextlib.contextmanager
def data_parallel():
    """Divides every batch among all devices, of all processes, for models that are built inside.

    With TensorFlow these are the devices of this machine (`tf.distribute.MirroredStrategy`), with
    JAX those of all processes (`keras.distribution.DataParallel`), each of which gives its own part
    of every batch to `fit`.

    Yields:
        The number of devices; with JAX every batch must be a multiple of it, with TensorFlow it should.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        devices = [device.name for device in tf.config.list_logical_devices(kind)]
        with tf.distribute.MirroredStrategy(devices).scope():
            yield len(devices)
        return
    _check_backend()
    parallel = keras.distribution.DataParallel(auto_shard_dataset=False)
    with _restored():
        keras.distribution.set_distribution(parallel)
        yield parallel.device_mesh.devices.size


@contextlib.contextmanager
def model_parallel():
    """For models that do not fit on one device: inside, `sharded` divides them among all of this machine.

    Yields:
        1, as every device sees the whole batch.

    Raises:
        ValueError: another backend than JAX, or several processes, of which none holds all weights
            to save.
    """
    _check_backend()
    _, processes = process()
    if processes > 1:
        raise ValueError(
            "A model is divided among the devices of one machine. Received: "
            f"{processes} processes. Use one, or divide the batches instead."
        )
    with _restored():
        yield 1


@contextlib.contextmanager
def _restored():
    """The distribution that is in force before is so afterwards."""
    before = keras.distribution.distribution()
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)


def layout_map(model, mesh):
    """Which axis of which weight of a plain model is divided among the devices of the axis "model".

    Args:
        model: of transformer blocks; only its names and sizes count.
        mesh: `keras.distribution.DeviceMesh` with an axis "model", whose size divides the heads and
            the hidden width of every block.

    Returns:
        A `keras.distribution.LayoutMap` for `keras.distribution.ModelParallel`.

    Raises:
        ValueError: no blocks, no such axis, or a size that does not divide the heads.

    Source: Shoeybi et al. 2019 (arXiv:1909.08053), section 3.
    """
    blocks = [layer for layer in model.layers if isinstance(layer, TransformerBlock)]
    if not blocks:
        raise ValueError(
            f"Only models of transformer blocks can be divided. Received: {model.name}."
        )
    if "model" not in mesh.axis_names:
        raise ValueError(
            f"The mesh must have an axis called 'model'. Received: axis_names={mesh.axis_names}."
        )
    devices = mesh.shape[list(mesh.axis_names).index("model")]
    layouts = keras.distribution.LayoutMap(mesh)
    for block in blocks:
        if block.attention.heads % devices:
            raise ValueError(
                "The devices of the axis 'model' must divide the heads. Received: "
                f"{devices} devices, {block.attention.heads} heads in {block.name}."
            )
        for variable in block.weights:
            axes = _axes(variable)
            if axes is not None:
                layouts[re.escape(variable.path)] = axes
    return layouts


def _axes(variable):
    """Mesh axis of every axis of a variable, None if every device holds all of it."""
    layer, name = variable.path.split("/")[-2:]
    if layer in _COLUMNS:
        return (None, "model") if name == "kernel" else ("model",)
    if layer in _ROWS and name == "kernel":
        return ("model", None)
    return None


def sharded(model, mesh=None):
    """A copy of a model that lives on the devices of a mesh; that mesh is then in force globally.

    Args:
        model: a plain model.
        mesh: see `layout_map`; by default all devices on the axis "model".

    Returns:
        A model of the same outputs, each device of the axis "model" holding its share of the blocks.

    Raises:
        ValueError: as `layout_map`, or another backend than JAX.
    """
    _check_backend()
    if mesh is None:
        devices = len(keras.distribution.list_devices())
        mesh = keras.distribution.DeviceMesh((1, devices), ("batch", "model"))
    distribution = keras.distribution.ModelParallel(
        layout_map=layout_map(model, mesh),
        batch_dim_name=mesh.axis_names[0],
        auto_shard_dataset=False,
    )
    values = [keras.ops.convert_to_numpy(variable) for variable in model.variables]
    keras.distribution.set_distribution(distribution)
    copy = keras.models.clone_model(model)
    for variable, value in zip(copy.variables, values, strict=True):  # random states among them
        variable.assign(value)
    return copy


def _check_backend():
    if keras.backend.backend() != "jax":
        raise ValueError(
            "Keras distributes over meshes and machines with the JAX backend. "
            f"Received: backend {keras.backend.backend()!r}. Set KERAS_BACKEND=jax."
        )
