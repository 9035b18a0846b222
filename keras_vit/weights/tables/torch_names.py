"""Rules shared by the formats of PyTorch origin."""

from keras_vit.weights import rules as t
from keras_vit.weights.rules import Rule


def norm(target, source):
    """LayerNorm weight and bias."""
    return [Rule(f"{target}/gamma", f"{source}.weight"), Rule(f"{target}/beta", f"{source}.bias")]


def dense(target, source):
    """Linear layer, weight (out, in)."""
    return [
        Rule(f"{target}/kernel", f"{source}.weight", t.transposed),
        Rule(f"{target}/bias", f"{source}.bias"),
    ]


def fused(targets, source, kernel, bias):
    """Several linear layers stored as one; `kernel` and `bias` make the transform of the k-th."""
    rules = []
    for k, target in enumerate(targets):
        rules.append(Rule(f"{target}/kernel", f"{source}.weight", kernel(k)))
        rules.append(Rule(f"{target}/bias", f"{source}.bias", bias(k)))
    return rules


def fused_qkv(target, source):
    """Query, key and value stacked along the rows."""
    names = (f"{target}/query", f"{target}/key", f"{target}/value")
    return fused(names, source, t.transposed_third, t.third)


def residual_units(prefix=""):
    """Units of timm's residual networks, whose names begin with `prefix`."""
    ours, theirs = "stage_{s}/unit_{u}", prefix + "stages.{s_from_0}.blocks.{u_from_0}"
    rules = []
    for conv, norm_, source, source_norm in (
        ("conv_1", "norm_1", "conv1", "norm1"),
        ("conv_2", "norm_2", "conv2", "norm2"),
        ("conv_3", "norm_3", "conv3", "norm3"),
        ("projection", "projection_norm", "downsample.conv", "downsample.norm"),
    ):
        rules.append(Rule(f"{ours}/{conv}/kernel", f"{theirs}.{source}.weight", t.kernel_oihw))
        rules += norm(f"{ours}/{norm_}", f"{theirs}.{source_norm}")
    return rules


def fused_pair(first, second, source):
    """Two linear layers stacked along the rows."""
    return fused((first, second), source, t.transposed_half, t.half)
