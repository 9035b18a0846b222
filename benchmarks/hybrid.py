"""Forward pass of R50+ViT-B/16 at 224 px against timm's model of the same shape.

    python benchmarks/hybrid.py [--rounds 20] [--out benchmarks/results]

Both as they run fastest without further compilation: a tf.function around the model with
training=False, and timm in inference mode. The residual network alone and the whole model take turns.
Needs timm and torch. On a machine that has other work to do, one thread for each gives the steadier
ratio: TF_NUM_INTRAOP_THREADS=1 and --threads 1. Expected time on two CPU cores: 3 minutes.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # timm's idle threads would slow the others

# isort: off
import timm  # before TensorFlow, which it cannot follow in every build
import torch

# isort: on

import keras
import measuring
import numpy as np
from keras import ops

import keras_vit

LIMIT = 1.05  # of timm's time


def ours():
    """Part -> function of images."""
    model = keras_vit.R50_B16(
        weights=None,
        input_shape=(224, 224, 3),
        include_preprocessing=False,
        classifier_activation=None,
    )
    stem = keras.Model(model.inputs, model.get_layer("r50_b16_stage_3").output)
    return {
        part: measuring.compiled(lambda images, network=network: network(images, training=False))
        for part, network in (("residual network", stem), ("whole model", model))
    }


def theirs():
    """Part -> function of images."""
    model = timm.create_model("vit_base_r50_s16_224").eval()

    def compiled(network):
        def run(images):
            with torch.inference_mode():
                return network(images)

        return run

    return {
        "residual network": compiled(model.patch_embed.backbone),
        "whole model": compiled(model),
    }


def main():
    parser = measuring.parser(__doc__, rounds=20)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of timm")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    networks = {"keras_vit": ours(), "timm": theirs()}
    rows, targets = [], []
    for batch in arguments.batches:
        images = np.random.default_rng(0).standard_normal((batch, 224, 224, 3)).astype("float32")
        inputs = {
            "keras_vit": ops.convert_to_tensor(images),
            "timm": torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
        }
        functions = {
            (part, library): functools.partial(function, inputs[library])
            for library, parts in networks.items()
            for part, function in parts.items()
        }
        seconds = measuring.minima(functions, arguments.rounds)
        for part in ("residual network", "whole model"):
            mine, other = (seconds[part, library] for library in networks)
            rows.append(
                {
                    "batch": batch,
                    "part": part,
                    "keras_vit, ms": 1000 * mine,
                    "timm, ms": 1000 * other,
                    "time / timm": mine / other,
                }
            )
        targets.append(measuring.target(f"batch {batch}: time / timm", mine / other, LIMIT))
    place = f"{keras.backend.backend()}_{measuring.device()}"
    about = f"{place.replace('_', ', ')}, float32, threads of timm: {arguments.threads}"
    title = f"Forward pass of R50+ViT-B/16, 224 px ({about})"
    sections = {"Targets": targets, "Measured": rows}
    measuring.write(arguments.out, f"hybrid_{place}", title, sections, arguments.rounds)


if __name__ == "__main__":
    main()
