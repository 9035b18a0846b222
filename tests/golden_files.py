"""The reference numbers in tests/goldens: reading them, and comparing a model with them."""

import functools
import json
import pathlib

import keras
import numpy as np
from safetensors_writer import write_safetensors

from keras_vit.models import plain

# Float32 against float32: 1e-4 of the scale of the output. Measured maxima are about 1e-6.
TOLERANCE = 1e-4

FOLDER = pathlib.Path(__file__).parent / "goldens"


class Golden:
    """One reference file: `meta`, `weights`, `inputs` and `outputs` (dicts of arrays)."""

    def __init__(self, stem):
        (path,) = FOLDER.glob(f"{stem}*.npz")
        self.name = path.stem
        with np.load(path, allow_pickle=False) as z:
            arrays = {k: z[k] for k in z.files}
        self.meta = json.loads(str(arrays.pop("meta")))
        self.config = self.meta.get("config", {})
        self.weights = {k[2:]: v for k, v in arrays.items() if k.startswith("w/")}
        self.inputs = {k[2:]: v for k, v in arrays.items() if k.startswith("x/")}
        if "x" in arrays:
            self.inputs[""] = arrays["x"]
        self.outputs = {k[2:]: v for k, v in arrays.items() if k.startswith("y/")}


def write_checkpoint(path, arrays):
    """Writes a checkpoint in the container that its source uses."""
    if any("/" in name for name in arrays):
        np.savez(path, **arrays)
    else:
        write_safetensors(path, arrays)
    return path


def google_config(golden):
    c = golden.config
    return plain.Config(
        patch=c["patch"][0] if isinstance(c["patch"], list) else c["patch"],
        width=c.get("hidden_size", c.get("width")),
        depth=c.get("num_layers", c.get("depth")),
        heads=c["num_heads"],
        mlp=c["mlp_dim"],
        image=tuple(c["image"]),
        **residual_numbers(golden),
    )


def residual_numbers(golden):
    """The fields of a `Config` that describe the stem of a hybrid."""
    resnet = golden.config.get("resnet")
    if resnet is None:
        return {}
    stages = tuple(resnet["num_layers"])
    return {
        "stem": plain.residual_stem,
        "stem_stride": 4 * 2 ** max(0, len(stages) - 1),
        "stages": stages,
        "stem_width": int(64 * resnet["width_factor"]),
        "groups": golden.meta["group_norm_groups"],
    }


def timm_config(golden):
    c = golden.config
    mlp = int(c["embed_dim"] * c["mlp_ratio"])
    swiglu = "mlp_layer" in c
    if swiglu and "GluMlp" in c["mlp_layer"]:
        mlp //= 2
    attention = functools.partial(
        plain.self_attention,
        use_bias=c.get("qkv_bias", True),
        query_key_norm=c.get("qk_norm", False),
    )
    return plain.Config(
        patch=c["patch_size"],
        width=c["embed_dim"],
        depth=c["depth"],
        heads=c["num_heads"],
        mlp=mlp,
        image=tuple(c["img_size"]),
        attention=attention,
        feed_forward=plain.swiglu if swiglu else plain.gelu_mlp,
        **residual_numbers(golden),
    )


def dinov2_config(golden):
    c = golden.config
    swiglu = c["ffn_layer"] != "mlp"
    hidden = int(c["embed_dim"] * c["mlp_ratio"])
    return plain.Config(
        patch=c["patch_size"],
        width=c["embed_dim"],
        depth=c["depth"],
        heads=c["num_heads"],
        mlp=(int(hidden * 2 / 3) + 7) // 8 * 8 if swiglu else hidden,
        image=(c["img_size"],) * 2,
        feed_forward=plain.swiglu if swiglu else plain.gelu_mlp,
    )


def hf_config(golden):
    c = golden.config
    hidden = int(c["hidden_size"] * c.get("mlp_ratio", 0)) or c["intermediate_size"]
    swiglu = c.get("use_swiglu_ffn", False)
    return plain.Config(
        patch=c["patch_size"],
        width=c["hidden_size"],
        depth=c["num_hidden_layers"],
        heads=c["num_attention_heads"],
        mlp=(int(hidden * 2 / 3) + 7) // 8 * 8 if swiglu else hidden,
        image=(c["image_size"],) * 2,
        feed_forward=plain.swiglu if swiglu else plain.gelu_mlp,
    )


def deepvit_config(golden):
    c = golden.config
    re_attending, cnn = c.get("re_atten", True), c.get("use_cnn_embed", False)
    head_size = c["embed_dim"] // c["num_heads"]
    scale = head_size**-0.5 if c.get("transform_scale") else 1.0
    mixed = functools.partial(plain.re_attention, scale=scale)
    return plain.Config(
        patch=c["patch_size"] // (2 if cnn else 1),
        width=c["embed_dim"],
        depth=c["depth"],
        heads=c["num_heads"],
        mlp=c["embed_dim"] * c["mlp_ratio"],
        image=tuple(c["img_size"]),
        stem=plain.conv_stem if cnn else None,
        stem_stride=2 if cnn else 1,
        scale_adjustment=c.get("scale_adjustment") if re_attending else None,
        attention=tuple(
            mixed if re_attending and transform else plain.self_attention
            for transform in c["apply_transform"]
        ),
    )


def config_of(golden):
    """The `Config` of a golden file."""
    makers = {
        "A": google_config,
        "B": google_config,
        "D": deepvit_config,
        "E": timm_config,
        "F0": dinov2_config,
        "F1": hf_config,
    }
    return next(make for key, make in makers.items() if golden.name.startswith(key))(golden)


def run(model, images):
    """What a model gives, in arrays. TensorFlow needs longer to compile a small model than to run it."""
    if keras.backend.backend() == "jax":
        return model.predict(images, verbose=0)
    return keras.tree.map_structure(
        keras.ops.convert_to_numpy, model(keras.ops.convert_to_tensor(images, "float32"))
    )


def compare(golden, builder, path, key, images, arguments):
    outputs = {
        name.removeprefix(f"{key}/") if key else name: value
        for name, value in golden.outputs.items()
        if name.startswith(f"{key}/" if key else "")
    }
    common = {"weights": path, "input_shape": images.shape[1:], "include_preprocessing": False}
    bare = builder(include_top=False, name="bare", **common)
    found = {"encoded": run(bare, images)}
    found.update(blocks(bare, images))
    found.update(stem_maps(bare, images))
    if "logits" in outputs and arguments.get("include_top", True):
        classes = outputs["logits"].shape[-1]
        model = builder(classes=classes, classifier_activation=None, **common, **arguments)
        found["logits"] = run(model, images)
        found.update(inner(model, images))
    prefix = golden.weights
    registers = next((v.shape[1] for k, v in prefix.items() if "regis" in k), 0)
    aliases = expected(outputs, found, registers)
    compared = [name for name in aliases if name in found]
    assert len(compared) >= 2, f"nothing to compare: {sorted(outputs)}"
    worst = 0.0
    for name in compared:
        want, got = aliases[name], found[name]
        assert got.shape == want.shape, name
        difference = np.abs(got - want).max() / max(1.0, np.abs(want).max())
        assert difference <= (1e-5 if name.startswith("attention") else TOLERANCE), name
        worst = max(worst, float(difference))
    return worst


def blocks(model, images):
    """Tokens after every block, the input of the first, and every attention map."""
    layers = [layer for layer in model.layers if "block_" in layer.name]
    inner = keras.Model(model.inputs, [layers[0].input, *(layer.output for layer in layers)])
    values = run(inner, images)
    found = {"tokens_in": values[0]}
    for i, layer in enumerate(layers):
        tokens, attention = layer(values[i], return_attention=True)
        found[f"block_{i}"] = values[i + 1]
        found[f"attention_{i}"] = keras.ops.convert_to_numpy(attention)
        rounding = 2e-6 * np.abs(values[i + 1]).max()  # decides for outputs above 10
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(tokens), values[i + 1], atol=max(2e-5, rounding)
        )
    return found


def stem_maps(model, images):
    """What a residual network makes of the first picture."""
    names = ("root_conv", "root_norm", *(f"stage_{s}" for s in range(1, 5)))
    maps = {n: model.get_layer(f"bare_{n}") for n in names if has_layer(model, f"bare_{n}")}
    if not maps:
        return {}
    outputs = {name: layer.output for name, layer in maps.items()}
    return run(keras.Model(model.inputs, outputs), images[:1])


def has_layer(model, name):
    return any(layer.name == name for layer in model.layers)


def inner(model, images):
    """What the head reads."""
    head = model.layers[-1]
    return {"pre_logits": run(keras.Model(model.inputs, head.input), images)}


def expected(outputs, found, registers):
    """The golden's outputs under our names."""
    names = {
        "tokens_in": "tokens_in",
        "posembed": "tokens_in",
        "hidden0": "tokens_in",
        "encoded": "encoded",
        "last_hidden_state": "encoded",
        "stem_conv_root": "root_conv",
        "stem_gn_root": "root_norm",
        "logits": "logits",
        "pre_logits": "pre_logits",
    }
    names |= {f"stem_block{s}": f"stage_{s}" for s in range(1, 5)}
    result = {new: outputs[old] for old, new in names.items() if old in outputs}
    for i in range(12):
        for old, new in (
            (f"block{i}", f"block_{i}"),
            (f"attn{i}", f"attention_{i}"),
            (f"attn{i}_used", f"attention_{i}"),  # after the mixing
        ):
            if old in outputs:
                result[new] = outputs[old]
        if f"hidden{i + 1}" in outputs:
            result[f"block_{i}"] = outputs[f"hidden{i + 1}"]
    if "x_norm_clstoken" in outputs:
        parts = [outputs["x_norm_clstoken"][:, None], outputs["x_norm_patchtokens"]]
        if registers:
            parts.insert(1, outputs["x_norm_regtokens"])
        result["encoded"] = np.concatenate(parts, axis=1)
    return result
