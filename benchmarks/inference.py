"""Forward pass of ViT-B/16 at 224 px against the other Keras libraries, and against timm.

    python benchmarks/inference.py [--rounds 7] [--out benchmarks/results]
    KERAS_BACKEND=jax python benchmarks/inference.py

Every library in the way that is the fastest ordinary one: a tf.function (TensorFlow, without XLA) or
jax.jit around the model with training=False; timm in inference mode, on a GPU with torch.compile.
`predict_on_batch` is there for information. timm has no mixed precision of this kind: its rows under
"mixed_bfloat16" are those of a bfloat16 model. The machine's rate is that of the matrix products of
all blocks, alone, at the same batch and dtype, measured in the same rounds; a forward pass counts as
35.15 GFLOP an image. Expected time on two CPU cores: 7 minutes.
"""

import functools
import importlib.util
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # timm shares the GPU
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # timm's idle threads would slow the others

import keras
import libraries
import measuring
import numpy as np
from keras import ops

GFLOP = 35.15
TOKENS, WIDTH, MLP = 197, 768, 3072
PRODUCTS = {(WIDTH, WIDTH): 48, (WIDTH, MLP): 12, (MLP, WIDTH): 12}  # of all blocks, and how often


def forward(model):
    """The model as a function of images."""
    if keras.backend.backend() != "jax":
        return measuring.compiled(lambda images: model(images, training=False))
    variables = [
        [v.value for v in group]
        for group in (model.trainable_variables, model.non_trainable_variables)
    ]
    run = measuring.compiled(lambda *x: model.stateless_call(*x, training=False)[0])
    return functools.partial(run, *variables)


def timm_forward(dtype):
    """timm's model: a function of NHWC images in numpy, which returns the function to be timed."""
    import timm
    import torch

    cuda = measuring.device() == "gpu" and torch.cuda.is_available()
    place = {
        "device": "cuda" if cuda else "cpu",
        "dtype": torch.float32 if dtype == "float32" else torch.bfloat16,
    }
    model = timm.create_model("vit_base_patch16_224").eval().to(**place)
    if cuda:
        model = torch.compile(model)

    def prepared(images):
        tensor = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(**place)

        def run():
            with torch.inference_mode():
                return model(tensor).cpu()

        return run

    return prepared


def products(batch, dtype):
    """A function that computes the matrix products of all blocks, one after the other."""
    numbers = "float32" if dtype == "float32" else "bfloat16"
    rng = np.random.default_rng(0)
    product, pairs = measuring.compiled(ops.matmul), []
    for (inner, outer), count in PRODUCTS.items():
        x = ops.convert_to_tensor(rng.standard_normal((batch * TOKENS, inner)), numbers)
        kernel = ops.convert_to_tensor(rng.standard_normal((inner, outer)), numbers)
        pairs += [(x, kernel)] * count

    def function():
        for x, kernel in pairs:
            product(x, kernel)

    return function


def measure(models, timm, batch, dtype, rounds):
    """Rows of one batch size and dtype."""
    images = np.random.default_rng(0).standard_normal((batch, 224, 224, 3)).astype("float32")
    tensor = ops.convert_to_tensor(images)
    functions = {}
    for name, model in models.items():
        functions[name] = functools.partial(forward(model), tensor)
        functions[name, "predict"] = functools.partial(model.predict_on_batch, images)
    if timm is not None:
        functions["timm"] = timm(images)
    functions["products"] = products(batch, dtype)
    seconds = measuring.minima(functions, rounds)
    work = sum(2e-9 * batch * TOKENS * i * o * count for (i, o), count in PRODUCTS.items())
    rate = work / seconds["products"]
    peers = [seconds[name] for name in models if name != "keras_vit"]
    return [
        {
            "library": name,
            "ms": 1000 * seconds[name],
            "images/s": batch / seconds[name],
            "GFLOP/s": batch * GFLOP / seconds[name],
            "machine's GFLOP/s": rate,
            "share of the rate": batch * GFLOP / seconds[name] / rate,
            "time / best Keras peer": seconds[name] / min(peers) if peers else None,
            "predict_on_batch, ms": 1000 * seconds[name, "predict"] if name in models else None,
        }
        for name in (*models, *(["timm"] if timm is not None else []))
    ]


def targets(sections):
    """What the project promises, against what was measured."""
    own = {key: rows[0] for key, rows in sections.items()}
    rows = []
    for (batch, dtype), row in own.items():
        where = f"batch {batch}, {dtype}"
        if row["time / best Keras peer"] is not None:
            rows.append(
                measuring.target(
                    f"{where}: time / best Keras peer", row["time / best Keras peer"], 1.02
                )
            )
        if dtype == "float32":
            rows.append(
                measuring.target(
                    f"{where}: share of the machine's rate", row["share of the rate"], 0.90, False
                )
            )
        elif (batch, "float32") in own:
            speedup = own[batch, "float32"]["ms"] / row["ms"]
            rows.append(measuring.target(f"{where}: speed / float32", speedup, 1.6, False))
    return rows


def main():
    parser = measuring.parser(__doc__, rounds=7)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32", "mixed_bfloat16", "bfloat16"], help="policies"
    )
    arguments = parser.parse_args()
    builders, missing = libraries.builders()
    if importlib.util.find_spec("timm") is None:
        missing["timm"] = "not installed"
    sections = {}
    for dtype in arguments.dtypes:
        keras.config.set_dtype_policy(dtype)
        models = {name: build() for name, build in builders.items()}
        timm = None if "timm" in missing else timm_forward(dtype)
        for batch in arguments.batches:
            sections[batch, dtype] = measure(models, timm, batch, dtype, arguments.rounds)
        del models, timm
        keras.backend.clear_session()
    named = {f"batch {batch}, {dtype}": rows for (batch, dtype), rows in sections.items()}
    named = {"Targets": targets(sections), **named}
    if missing:
        named["Not measured"] = [{"library": k, "reason": v} for k, v in missing.items()]
    place = f"{keras.backend.backend()}_{measuring.device()}"
    title = f"Forward pass of ViT-B/16, 224 px ({place.replace('_', ', ')})"
    measuring.write(arguments.out, f"inference_{place}", title, named, arguments.rounds)


if __name__ == "__main__":
    main()
