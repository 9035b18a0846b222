"""Every declared model against the published numbers."""

import inspect
import pathlib
import re

import keras
import pytest

import keras_vit
from keras_vit import registry
from keras_vit.models import plain, residual
from keras_vit.preprocessing import STATISTICS

# google-research/vision_transformer, timm 1.0.31, facebookresearch/dinov2 and zhoudaquan/dvit_repo;
# 1,000 classes at the native size, DINOv2 without a head and mask token, DeepViT without statistics.
PUBLISHED = {
    "ViT_Ti16": 5_717_416,
    "ViT_S8": 22_055_272,
    "ViT_S16": 22_050_664,
    "ViT_S32": 22_878_952,
    "ViT_B8": 86_576_872,
    "ViT_B16": 86_567_656,
    "ViT_B32": 88_224_232,
    "ViT_L16": 304_326_632,
    "ViT_L32": 306_535_400,
    "ViT_H14": 632_045_800,
    "ViT_g14": 1_012_611_432,
    "ViT_G14": 1_844_440_680,
    "R_Ti16": 6_337_704,
    "R26_S32": 36_431_912,
    "R26_B32": 101_383_976,
    "R50_B16": 98_659_112,
    "R50_L32": 328_994_856,
    "BiT_R50x1": 25_549_352,
    "BiT_R50x3": 217_319_080,
    "BiT_R101x1": 44_541_480,
    "BiT_R101x3": 387_934_888,
    "BiT_R152x2": 236_335_208,
    "BiT_R152x4": 936_533_224,
    "DINOv2_S14": 22_056_192,
    "DINOv2_B14": 86_579_712,
    "DINOv2_L14": 304_367_616,
    "DINOv2_g14": 1_136_479_232,
    "DINOv2_S14_reg4": 22_057_728,
    "DINOv2_B14_reg4": 86_582_784,
    "DINOv2_L14_reg4": 304_371_712,
    "DINOv2_g14_reg4": 1_136_485_376,
    "ViT_Mini4": 459_466,
    "DeepViT_16B": 24_426_664,
    "DeepViT_24B": 36_261_448,
    "DeepViT_32B": 48_096_232,
    "DeepViT_S": 27_312_632,
    "DeepViT_L": 58_883_708,
    "DeepViT_L_384": 59_043_308,
    "PlainViT_16B": 24_423_784,
    "PlainViT_24B": 36_257_128,
    "PlainViT_32B": 48_090_472,
}


def residual_stages(units, filters, channels, norms_after):
    """Parameters of all stages of a residual network, and the channels of its last one."""
    count = 0
    for n, f in zip(units, filters, strict=True):
        for u in range(n):
            count += f * (channels + 9 * f + 4 * f) + 2 * (2 * f)
            count += 2 * (4 * f if norms_after else channels)
            if u == 0:
                count += 4 * f * (channels + (2 if norms_after else 0))
            channels = 4 * f
    return count, channels


def closed_form(config, classes):
    """Parameters of a model, counted by hand."""
    c = config
    if isinstance(c, residual.Config):
        stages, channels = residual_stages(c.stages, c.filters, c.stem_width, norms_after=False)
        return 7 * 7 * 3 * c.stem_width + stages + 2 * channels + classes * (channels + 1)
    grid = (c.image[0] // c.pixels) * (c.image[1] // c.pixels)
    gated = c.feed_forward is plain.swiglu
    mlp = (3 if gated else 2) * c.width * c.mlp + (2 if gated else 1) * c.mlp + c.width
    block = 4 * (c.width**2 + c.width) + mlp + 4 * c.width
    block += 2 * c.width if c.layer_scale is not None else 0
    channels, stem = 3, 0
    if c.stem is plain.residual_stem:
        filters = [c.stem_width * 2**i for i in range(len(c.stages))]
        stem, channels = residual_stages(c.stages, filters, c.stem_width, norms_after=True)
        stem += c.stem_width * (7 * 7 * 3 + 2)
    elif c.stem is not None:
        channels, stem = 64, 64 * (7 * 7 * 3 + 3 * 3 * 64) + 4 * 64
    embedding = channels * c.patch**2 * c.width + c.width
    tokens = (c.prefix + len(c.tokens) + grid) * c.width
    usual = [c.attention_of(i) is plain.self_attention for i in range(c.depth)]
    mixing = usual.count(False) * (c.heads**2 + 3 * c.heads)
    encoder = embedding + tokens + c.depth * block + mixing + 2 * c.width
    return stem + encoder + classes * (c.width + 1)


def rows():
    return [registry.get_variant(name) for name in keras_vit.list_models()]


def test_every_model_has_a_published_count():
    assert set(PUBLISHED) == set(keras_vit.list_models())
    for row in rows():
        assert row.parameters == PUBLISHED[row.name], row.name
        headless = row.counted.startswith("without a head")
        assert closed_form(row.config, 0 if headless else row.classes) == row.parameters, row.name


@pytest.mark.parametrize(
    "name",
    [
        "ViT_Ti16",
        "ViT_S8",
        "ViT_S16",
        "ViT_S32",
        "ViT_B16",
        "ViT_B32",
        "ViT_Mini4",
        "R_Ti16",
        "R26_S32",
        "R50_B16",
        "BiT_R50x1",
        "BiT_R101x1",
    ],
)
def test_count_before_the_first_call(name):
    model = getattr(keras_vit, name)(weights=None)
    assert model.count_params() == PUBLISHED[name]
    assert (
        sum(
            v.shape.num_elements()
            if hasattr(v.shape, "num_elements")
            else int(keras.ops.prod(v.shape))
            for v in model.non_trainable_weights
        )
        == 0
    )
    assert len({v.path for v in model.weights}) == len(model.weights)


@pytest.mark.parametrize("name", ["DINOv2_S14", "DINOv2_S14_reg4"])
def test_count_of_dinov2(name):
    assert (
        getattr(keras_vit, name)(weights=None, include_top=False).count_params() == PUBLISHED[name]
    )


@pytest.mark.parametrize(
    "arguments, count",
    [
        ({"input_shape": (384, 384, 3)}, 86_859_496),
        ({"classes": 21843}, 102_595_923),
        ({"classes": 21843, "representation_size": 768}, 103_186_515),
        ({"include_top": False}, 85_798_656),
        ({"classifier": "gap"}, 86_566_120),
        ({"classifier": "map"}, 93_653_224),
    ],
)
def test_published_counts_of_other_forms_of_b16(arguments, count):
    assert keras_vit.ViT_B16(weights=None, **arguments).count_params() == count


def test_names_and_modules():
    for row in rows():
        function = row.function
        assert function is getattr(keras_vit, row.name)
        assert function is getattr(getattr(keras_vit, row.family), row.name)
        assert function.__name__ == row.name
        signature = inspect.signature(function)
        assert signature.parameters["name"].default == row.name.lower()
        assert signature.parameters["weights"].default == row.default
        assert f"{row.parameters:,} parameters" in function.__doc__
        for weights in row.weights:
            assert repr(weights.name) in function.__doc__


def test_order_of_arguments_is_that_of_keras_applications():
    theirs = list(inspect.signature(keras.applications.ResNet50).parameters)
    for name in keras_vit.list_models():
        ours = inspect.signature(getattr(keras_vit, name)).parameters
        assert list(ours)[: len(theirs)] == theirs
        kinds = {p.kind for p in list(ours.values())[len(theirs) :]}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_weights_rows():
    total = dict.fromkeys(("vit", "hybrid", "bit", "dinov2", "deepvit"), 0)
    for row in rows():
        total[row.family] += len(row.weights)
        for weights in row.weights:
            assert re.match(r"(https://|package:)", weights.url), weights
            assert weights.statistics in STATISTICS
            assert weights.licence and weights.origin
            assert weights.classes in (0, 10, 1000, 21843)
            assert weights.labels is None or len(weights.labels) == weights.classes
            assert all(side % row.config.pixels == 0 for side in weights.image)
    assert total["vit"] >= 30 and total["dinov2"] >= 8
    assert total["hybrid"] == 17 and total["bit"] == 22


def test_lists():
    assert keras_vit.list_models("vit_b*") == ["ViT_B8", "ViT_B16", "ViT_B32"]
    assert keras_vit.list_weights("vit_l32") == ["imagenet", "imagenet21k", "sam-imagenet"]
    with pytest.raises(ValueError, match="no such model. Received: model='ViT_B17'. .*ViT_B16"):
        keras_vit.list_weights("ViT_B17")


def test_a_name_is_taken_once(tiny):
    config = registry.get_variant("Tiny").config
    with pytest.raises(ValueError, match="registered already. Received: name='Tiny'"):
        registry.variant("Tiny", config, plain.build, parameters=0)


def test_a_misspelt_argument(tiny):
    with pytest.raises(TypeError, match=r"Tiny\(\).*'weigths'.*The signature is Tiny\(include_top"):
        tiny(weigths=None)


def test_public_names_are_listed():
    models = set(keras_vit.list_models())
    public = {name for name in vars(keras_vit.public) if not name.startswith("_")}
    assert all(getattr(keras_vit, name) is getattr(keras_vit.public, name) for name in public)
    modules = {p.stem for p in pathlib.Path(keras_vit.__file__).parent.iterdir()}
    rest = public - models - modules
    assert rest == {
        "bit",
        "decode_predictions",
        "deepvit",
        "dinov2",
        "feature_extractor",
        "hybrid",
        "list_models",
        "list_weights",
        "load_image",
        "prepare",
        "recipe_of",
        "vit",
    }
