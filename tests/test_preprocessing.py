"""Recipes against the pipelines the weights come from, statistics, names."""

import inspect
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.preprocessing import (
    STATISTICS,
    Recipe,
    class_names,
    decode_predictions,
    make_preprocess_input,
    normalize,
    prepare,
    preprocess_input,
    recipe_of,
)

GOLDENS = Path(__file__).parent / "goldens"
SIZE = (48, 48)
VIT_HF = Recipe(SIZE, resize="squash", interpolation="bilinear")
# file, recipe's name there, the same as a Recipe, statistics, grey levels allowed
RECIPES = [
    ("H01_transforms_timm", "timm_48_bicubic_crop0.9_half", Recipe(SIZE, crop_fraction=0.9), 0),
    ("H01_transforms_timm", "timm_48_bicubic_crop1.0_imagenet", Recipe(SIZE), 0),
    (
        "H01_transforms_timm",
        "timm_48_bilinear_crop0.875_imagenet",
        Recipe(SIZE, crop_fraction=0.875, interpolation="bilinear"),
        0,
    ),
    (
        "H01_transforms_timm",
        "timm_48_bicubic_squash_crop1.0_half",
        Recipe(SIZE, resize="squash"),
        0,
    ),
    (
        "H01_transforms_timm",
        "timm_48_bicubic_border_crop0.9_imagenet",
        Recipe(SIZE, resize="border", crop_fraction=0.9, fill=(124, 116, 104)),
        0,
    ),
    ("H02_transforms_hf", "hf_vit_pil_48_bilinear_half", VIT_HF, 0),
    ("H02_transforms_hf", "hf_vit_torchvision_48_bilinear_half", VIT_HF, 1),
    (
        "H02_transforms_hf",
        "hf_dinov2_bit_pil_resize53_crop48_bicubic_imagenet",
        Recipe(SIZE, crop_fraction=0.9, crop_offset="floor"),
        0,
    ),
    (
        "H02_transforms_hf",
        "hf_deit_pil_resize54_crop48_bicubic_imagenet",
        Recipe(SIZE, resize="squash", crop_fraction=0.875),
        0,
    ),
    (
        "H03_transforms_google_tf",
        "vit_jax_eval_48",
        Recipe(SIZE, resize="squash", interpolation="bilinear", antialias=False),
        0,
    ),
]


def golden(file, recipe_name):
    """Pairs of a uint8 picture and what the pipeline makes of it."""
    with np.load(GOLDENS / f"{file}.npz", allow_pickle=False) as arrays:
        prefix = f"y/{recipe_name}/"
        images = [key.removeprefix(prefix) for key in arrays if key.startswith(prefix)]
        return [(arrays[f"x/{image}"], arrays[prefix + image]) for image in images]


@pytest.mark.parametrize(
    ("file", "name", "recipe", "levels"), RECIPES, ids=[name for _, name, _, _ in RECIPES]
)
def test_recipe_gives_what_the_pipeline_gives(file, name, recipe, levels):
    pairs = golden(file, name)
    assert len(pairs) >= 2
    statistics = "imagenet" if name.endswith("imagenet") else "half"
    level = 1 / 255 / min(STATISTICS[statistics][1])
    for picture, expected in pairs:
        untouched = picture.copy()
        image = prepare(picture, recipe)
        assert image.dtype == (np.uint8 if recipe.antialias else np.float32)
        difference = np.abs(normalize(image, statistics) - expected).max()
        assert difference <= levels * level + 1e-6
        np.testing.assert_array_equal(picture, untouched)


@pytest.mark.parametrize(
    ("file", "name", "wrong"),
    [
        ("H01_transforms_timm", "timm_48_bicubic_crop0.9_half", Recipe(SIZE)),
        (
            "H01_transforms_timm",
            "timm_48_bicubic_crop0.9_half",
            Recipe(SIZE, crop_fraction=0.9, interpolation="bilinear"),
        ),
        (
            "H01_transforms_timm",
            "timm_48_bicubic_crop0.9_half",
            Recipe(SIZE, crop_fraction=0.9, crop_offset="floor"),
        ),
        ("H03_transforms_google_tf", "vit_jax_eval_48", VIT_HF),
    ],
)
def test_another_recipe_is_noticed(file, name, wrong):
    differences = [
        np.abs(normalize(prepare(picture, wrong), "half") - expected).max()
        for picture, expected in golden(file, name)
    ]
    assert max(differences) > 0.1


@pytest.mark.parametrize("resize", ["shorter-side", "squash", "border"])
@pytest.mark.parametrize("size", [(32, 48), (48, 32), (1, 7)])
@pytest.mark.parametrize("shape", [(50, 70, 3), (3, 200, 3), (200, 3, 3), (1, 1, 3)])
def test_any_picture_fills_any_size(resize, size, shape):
    picture = np.full(shape, 200, "uint8")
    image = prepare(picture, Recipe(size, resize, crop_fraction=0.9))
    assert image.shape == (*size, 3)
    assert set(np.unique(image)) <= ({0, 200} if resize == "border" else {200})


def test_border_keeps_the_whole_picture_in_the_middle():
    image = prepare(np.full((10, 20, 3), 9, "uint8"), Recipe((8, 8), "border", fill=(1, 2, 3)))
    assert (image[2:6] == 9).all()
    assert (image[[0, 1, 6, 7]] == (1, 2, 3)).all()


def test_bicubic_overshoot_is_clipped():
    edge = np.zeros((64, 64, 3), "uint8")
    edge[:, 32:] = 255
    image = prepare(edge, Recipe((96, 96)))
    assert image.dtype == np.uint8 and image[:, :40].max() == 0 and image[:, 56:].min() == 255


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resize": "stretch"}, "`resize` must be one of 'shorter-side', 'squash', 'border'"),
        ({"interpolation": "area"}, "`interpolation` must be one of 'bilinear', 'bicubic'"),
        ({"crop_offset": "ceil"}, "`crop_offset` must be one of"),
        ({"crop_fraction": 0}, "crop_fraction=0"),
        ({"crop_fraction": 1.1}, "crop_fraction=1.1"),
        ({"size": (0, 4)}, r"positive .height, width.*size=\(0, 4\)"),
        ({"size": (4, 4, 3)}, r"size=\(4, 4, 3\)"),
        ({"antialias": False}, "only bilinear.*'bicubic'.*antialias=True"),
    ],
)
def test_impossible_recipes_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**{"size": (4, 4), **fields})


@pytest.mark.parametrize(
    "image", [np.zeros((4, 4, 3)), np.zeros((4, 4), "uint8"), np.zeros((4, 4, 1), "uint8"), "a.jpg"]
)
def test_prepare_refuses_what_load_image_does_not_return(image):
    with pytest.raises(ValueError, match=r"uint8 array \(H, W, 3\).*Received: dtype="):
        prepare(image, Recipe((4, 4)))


@pytest.mark.parametrize(
    ("statistics", "expected"),
    [
        ("half", (-1, -0.02745, 1)),
        ("imagenet", (-2.1179, 0.0056, 2.2489)),
        ("clip", (-1.79226, 0.01799, 1.93036)),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64"])
def test_statistics_of_red(statistics, expected, dtype):
    pixels = np.repeat(np.array([0, 124, 255], dtype)[None, :, None], 3, axis=-1)  # (1, 3, 3)
    before = pixels.copy()
    scaled = make_preprocess_input(statistics)(pixels, include_preprocessing=False)
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled[0, :, 0], expected, atol=5e-5)
    np.testing.assert_array_equal(pixels, before)
    tensor = make_preprocess_input(statistics)(
        keras.ops.convert_to_tensor(pixels), include_preprocessing=False
    )
    assert keras.ops.is_tensor(tensor)
    assert keras.backend.standardize_dtype(tensor.dtype) == "float32"
    np.testing.assert_allclose(keras.ops.convert_to_numpy(tensor), scaled, atol=1e-6)


def test_the_model_normalises_by_itself_unless_told_otherwise():
    pixels = np.zeros((2, 4, 4, 3), "uint8")
    function = make_preprocess_input("imagenet")
    assert function(pixels) is pixels
    assert preprocess_input(pixels, "imagenet") is pixels


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("channels", [1, 3])
def test_channels_first_is_the_transposed_channels_last(batch, channels):
    pixels = np.random.default_rng(0).integers(0, 256, (*batch, 5, 6, channels)).astype("uint8")
    last = preprocess_input(pixels, "imagenet", include_preprocessing=False)
    first = preprocess_input(np.moveaxis(pixels, -1, -3), "imagenet", False, "channels_first")
    np.testing.assert_array_equal(np.moveaxis(first, -3, -1), last)
    keras.config.set_image_data_format("channels_first")
    try:
        by_default = preprocess_input(np.moveaxis(pixels, -1, -3), "imagenet", False)
    finally:
        keras.config.set_image_data_format("channels_last")
    np.testing.assert_array_equal(by_default, first)


def test_one_channel_takes_the_averages():
    mean, std = np.mean([0.485, 0.456, 0.406]), np.mean([0.229, 0.224, 0.225])
    scaled = normalize(np.array([[[0], [51], [255]]], "uint8"), "imagenet")
    np.testing.assert_allclose(scaled[0, :, 0], (np.array([0, 0.2, 1]) - mean) / std, rtol=1e-5)


def test_symbolic_tensors_pass():
    images = keras.Input((None, None, 3), dtype="uint8")
    scaled = preprocess_input(images, "half", include_preprocessing=False)
    assert scaled.shape == (None, None, None, 3) and scaled.dtype == "float32"


@pytest.mark.parametrize("peak", [1.0, 2.64])
def test_scaled_pixels_are_warned_of(peak):
    pixels = np.linspace(-1, peak, 12, dtype="float32").reshape(1, 2, 2, 3)
    with pytest.warns(UserWarning, match="look scaled already.*Pass the pixels") as caught:
        make_preprocess_input("half")(pixels, include_preprocessing=False)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((2, 2, 3)),
        np.zeros((0, 2, 2, 3)),
        np.ones((2, 2, 3), "uint8"),
        np.linspace(0, 255, 12).reshape(2, 2, 3),
    ],
)
def test_pixels_as_read_are_not_warned_of(pixels):
    normalize_only = preprocess_input(pixels, "half", include_preprocessing=False)
    assert normalize_only.shape == pixels.shape


@pytest.mark.parametrize("shape", [(4, 3), (1, 2, 4, 4, 3), (4, 4, 2), (3, 4, 4)])
def test_wrong_rank_or_channels_are_refused(shape):
    with pytest.raises(ValueError, match=r"rank 3 or 4 and have 1 or 3 channels.*Received: shape="):
        normalize(np.zeros(shape, "uint8"), "half")


def test_unknown_statistics_and_data_format_are_refused():
    pixels = np.zeros((2, 2, 3), "uint8")
    with pytest.raises(ValueError, match="one of 'half', 'imagenet', 'clip'.*statistics='caffe'"):
        normalize(pixels, "caffe")
    with pytest.raises(ValueError, match="statistics_name='caffe'"):
        make_preprocess_input("caffe")
    with pytest.raises(ValueError, match="data_format='NHWC'"):
        preprocess_input(pixels, "half", include_preprocessing=False, data_format="NHWC")


def test_the_family_function_has_a_name_a_signature_and_its_numbers():
    function = make_preprocess_input("imagenet")
    assert function.__name__ == function.__qualname__ == "preprocess_input"
    signature = "(x, data_format=None, *, include_preprocessing=True)"
    assert str(inspect.signature(function)) == signature
    assert "(0.485, 0.456, 0.406)" in function.__doc__
    assert "(0.229, 0.224, 0.225)" in function.__doc__


def test_class_names_in_label_order():
    names = class_names("imagenet")
    assert len(names) == len(set(names)) == 1000
    assert names[0] == ("n01440764", "tench")
    assert names[281] == ("n02123045", "tabby")
    assert names[134][1] == names[517][1] == "crane"
    assert names[638:640] == [("n03710637", "maillot"), ("n03710721", "maillot, tank suit")]
    assert names[999][0] == "n15075141"
    more = class_names("imagenet21k")
    assert len(more) == len(set(more)) == 21843
    assert more[0] == ("n00004475", "organism")
    assert dict(names).keys() - dict(more).keys() == {"n04399382"}  # the teddy bear
    names.clear()
    assert len(class_names("imagenet")) == 1000
    with pytest.raises(ValueError, match="'imagenet', 'imagenet21k'.*dataset='cifar10'"):
        class_names("cifar10")


def test_decode_predictions_names_the_best_first():
    scores = np.zeros((2, 1000), "float32")
    scores[0, [281, 0, 999]] = 0.5, 0.25, 0.125
    scores[1, 7] = 1
    decoded = decode_predictions(scores, top=3)
    assert decoded[0][:2] == [("n02123045", "tabby", 0.5), ("n01440764", "tench", 0.25)]
    assert decoded[0][2][0] == "n15075141" and type(decoded[0][2][2]) is float
    assert [entry[0] for entry in decoded[1][1:]] == ["n01440764", "n01443537"]  # equals in order
    assert decode_predictions(keras.ops.convert_to_tensor(scores), top=3) == decoded
    assert len(decode_predictions(scores)[0]) == 5
    assert decode_predictions(np.eye(1, 21843))[0][0] == ("n00004475", "organism", 1.0)


def test_decode_predictions_with_given_names():
    scores = np.array([[0.1, 0.9], [0.8, 0.2]])
    assert decode_predictions(scores, names=["cat", "dog"]) == [
        [("dog", "dog", 0.9), ("cat", "cat", 0.1)],
        [("cat", "cat", 0.8), ("dog", "dog", 0.2)],
    ]
    assert decode_predictions(scores, top=1, names=[("n1", "cat"), ("n2", "dog")]) == [
        [("n2", "dog", 0.9)],
        [("n1", "cat", 0.8)],
    ]
    thousand = [f"class {label}" for label in range(1000)]
    assert decode_predictions(np.eye(1, 1000), 1, thousand) == [[("class 0", "class 0", 1.0)]]


@pytest.mark.parametrize(
    ("predictions", "options", "message"),
    [
        (np.zeros(1000), {}, r"batch of scores.*shape=\(1000,\).*batch axis"),
        (np.zeros((1, 1, 1000)), {}, r"batch of scores.*shape=\(1, 1, 1000\)"),
        (np.array([[0, 1], [np.nan, 0]]), {}, "NaN for 1 of 2 pictures, the first at index 1"),
        (np.zeros((1, 10)), {}, r"No names are known for 10 classes, only for \[1000, 21843\]"),
        (np.zeros((1, 3)), {"names": ["cat", "dog"]}, r"2 names for predictions of shape \(1, 3\)"),
        (np.zeros((1, 1000)), {"top": 0}, "`top` must be at least 1. Received: top=0"),
    ],
)
def test_decode_predictions_refuses(predictions, options, message):
    with pytest.raises(ValueError, match=message):
        decode_predictions(predictions, **options)


def test_recipe_of_a_model_and_of_one_that_holds_it(tiny):
    model = tiny(weights=None, classes=10, input_shape=(24, 32, 3))
    assert recipe_of(model) == Recipe((24, 32))
    holder = keras.Sequential([keras.Input((24, 32, 3)), model, keras.layers.Dense(2)])
    assert recipe_of(holder) == Recipe((24, 32))
    [normalize] = [layer for layer in model.layers if layer.name == "tiny_normalize"]
    normalize.recipe = {"crop_fraction": 0.875, "interpolation": "bilinear"}
    expected = Recipe((24, 32), crop_fraction=0.875, interpolation="bilinear")
    assert recipe_of(model) == recipe_of(holder) == expected


def test_recipe_of_a_model_of_dynamic_size(tiny):
    assert recipe_of(tiny(weights=None, input_shape=(None, None, 3))) == Recipe((32, 32))
    assert recipe_of(tiny(weights=None, input_shape=(24, None, 3))) == Recipe((24, 32))


@pytest.mark.parametrize(
    "options", [{"include_preprocessing": False}, {"input_shape": (32, 32, 1)}]
)
def test_recipe_of_other_models(tiny, options):
    with pytest.raises(ValueError, match="hold a Normalize layer. Received: tiny with input shape"):
        recipe_of(tiny(weights=None, **options))
