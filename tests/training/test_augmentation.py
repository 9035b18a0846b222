"""Augmentation: what each part does to pixels and labels."""

import keras
import numpy as np
import pytest

from keras_vit import prepare
from keras_vit.preprocessing import Recipe
from keras_vit.training import Augmentation, Samples, preview, training_dataset
from keras_vit.training.augmentation import _Seeds, rand_augment_changes

OFF = {"crop_area": None, "flip": False}
N, SIZE = 8, (16, 24)
RECIPE = Recipe(SIZE)


def uniform_pictures():
    """N pictures of one grey each, 30 apart; the label tells which."""
    images = np.repeat(np.arange(N, dtype="uint8") * 30, SIZE[0] * SIZE[1]).reshape(N, *SIZE)
    return Samples(images, np.arange(N), range(N))


def noise(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (*SIZE, 3)).astype("uint8")


def batches(count, samples=None, **options):
    dataset = training_dataset(
        samples or uniform_pictures(), RECIPE, N, augmentation=Augmentation(**{**OFF, **options})
    )
    return list(dataset.take(count).as_numpy_iterator())


def boxes(image, augmentation, count=300):
    random = np.random.default_rng(0)
    return np.array([augmentation._box(image.shape[:2], random) for _ in range(count)])


def test_crops_keep_to_area_and_aspect():
    augmentation = Augmentation(crop_area=(0.2, 0.6), crop_aspect=(0.5, 2.0))
    left, top, right, bottom = boxes(np.zeros((300, 400, 3)), augmentation).T
    assert (left >= 0).all() and (top >= 0).all() and (right <= 400).all() and (bottom <= 300).all()
    width, height = right - left, bottom - top
    area, aspect = width * height / 120_000, width / height
    assert 0.19 < area.min() < 0.25 and 0.55 < area.max() < 0.61
    assert 0.48 < aspect.min() < 0.6 and 1.7 < aspect.max() < 2.1
    assert left.min() < 20 and right.max() > 380


def test_crop_of_an_extreme_picture_is_its_middle():
    left, top, right, bottom = boxes(
        np.zeros((10, 1000, 3)), Augmentation(crop_area=(0.9, 1.0)), 1
    )[0]
    assert (top, bottom) == (0, 10) and right - left == 13 and abs(left + right - 1000) <= 1
    assert boxes(np.zeros((1, 1, 3)), Augmentation(), 1).tolist() == [[0, 0, 1, 1]]


def test_whole_crop_is_the_resized_picture():
    image = noise()
    augmentation = Augmentation(crop_area=(1.0, 1.0), crop_aspect=(1.5, 1.5), flip=False)
    cut = augmentation.cut(image, Recipe((8, 12)), np.random.default_rng(0))
    np.testing.assert_array_equal(cut, prepare(image, Recipe((8, 12), "squash")))


def test_nothing_on_is_the_evaluation_cut():
    for images, labels in batches(1):
        assert images.dtype == np.uint8 and labels.dtype == np.int32
        np.testing.assert_array_equal(
            images[..., 0], np.ones((N, *SIZE)) * labels[:, None, None] * 30
        )


def test_flip_mirrors_half_of_the_pictures():
    samples = Samples(np.stack([noise(k) for k in range(N)]), np.arange(N), range(N))
    mirrored = 0
    for images, labels in batches(10, samples, flip=True):
        for image, label in zip(images, labels, strict=True):
            assert np.array_equal(image, noise(label)) or np.array_equal(
                image, noise(label)[:, ::-1]
            )
            mirrored += np.array_equal(image, noise(label)[:, ::-1])
    assert 25 < mirrored < 55  # of 80


def mean_error(images, labels):
    """How far the mean of each picture is from what its label says."""
    return np.abs(images.mean((1, 2, 3)) - labels @ np.arange(N) * 30).max()


def test_mix_up_blends_pictures_as_labels():
    for images, labels in batches(5, mix_up=0.8):
        np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)
        assert mean_error(images, labels) < 0.01
        assert (np.ptp(images, axis=(1, 2, 3)) < 0.01).all()
        assert (labels.max(1) < 0.99).any()


def test_cut_mix_pastes_a_rectangle_and_counts_its_area():
    mixed = 0
    for images, labels in batches(10, cut_mix=1.0):
        np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)
        for image in images:
            values = np.unique(image)
            assert len(values) <= 2 and set(values) <= set(range(0, 30 * N, 30))
            mixed += len(values) == 2
        assert mean_error(images, labels) < 210 / 8  # the rectangle ends on whole pixels
    assert mixed > 40


def test_both_mixings_take_turns():
    kinds = [
        any(len(np.unique(image)) == 2 for image in images)
        for images, _ in batches(40, mix_up=0.8, cut_mix=1.0)
    ]
    assert 10 < sum(kinds) < 30


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_erasing_hits_its_share_and_stays_in_range(share):
    hit = 0
    for images, labels in batches(20, erasing=share):
        changed = (images != labels[:, None, None, None] * 30).any(-1)
        hit += changed.any((1, 2)).sum()
        assert images.min() >= 0 and images.max() <= 255
        assert changed.mean((1, 2)).max() < 0.45
    assert share - 0.1 < hit / (20 * N) <= share + 0.1


def test_half_precision_leaves_pictures_exact():
    keras.config.set_dtype_policy("mixed_float16")
    keras.config.set_image_data_format("channels_first")
    ((images, labels),) = batches(1, flip=True, mix_up=1e-9)
    assert images.dtype == np.float32 and labels.dtype == np.float32
    assert mean_error(images, labels) < 1e-3


@pytest.fixture(scope="module")
def changed():
    """{name: pictures (5, h, w, 3)} of all changes at magnitude 10, and the picture."""
    import tensorflow as tf

    names = [
        "turn",
        "shear_x",
        "shear_y",
        "shift_x",
        "shift_y",
        "brightness",
        "contrast",
        "colour",
        "sharpness",
        "bits",
        "solarize",
        "invert",
        "contrast_range",
        "equalize",
    ]
    rows, columns = np.mgrid[:32, :48]
    image = np.stack([rows * 4 + 40, columns * 4 + 20, 200 - rows * 2 - columns], -1)
    result = {"picture": image.astype("float32")}
    for name, change in zip(names, rand_augment_changes(10), strict=True):
        dataset = tf.data.Dataset.range(5).map(
            lambda k, change=change: change(
                tf.constant(result["picture"]), _Seeds(tf.stack([tf.cast(k, tf.int32), 7]))
            )
        )
        result[name] = np.stack(list(dataset.as_numpy_iterator()))
    return result


def test_all_changes_stay_in_range_and_differ_by_seed(changed):
    for name, images in changed.items():
        assert images.min() >= 0 and images.max() <= 255 + 1e-3, name
        if name not in ("picture", "bits", "invert", "contrast_range", "equalize"):
            assert len({image.tobytes() for image in images}) == 5, name


def test_exact_changes(changed):
    image = changed["picture"]
    np.testing.assert_array_equal(changed["invert"][0], 255 - image)
    np.testing.assert_array_equal(changed["bits"][0], np.floor(image / 16) * 16)
    low, high = image.min((0, 1)), image.max((0, 1))
    np.testing.assert_allclose(
        changed["contrast_range"][0], (image - low) / (high - low) * 255, atol=1
    )
    solarized = changed["solarize"]
    assert ((solarized == image) | (solarized == 255 - image)).all()


def test_shifts_and_shears_are_of_the_stated_size(changed):
    image = changed["picture"]
    for name, axis, limit in (("shift_x", 1, 0.45 * 48), ("shift_y", 0, 0.45 * 32)):
        filled = [(one == 128).all((1 - axis, 2)).sum() for one in changed[name]]
        assert 0 < max(filled) <= limit + 1
        assert all((one == 128).all(-1).mean() < 0.47 for one in changed[name])
    for one in changed["turn"]:
        kept = np.abs(one - image)[14:18, 22:26]
        assert kept.max() < 12  # the middle stays where it is


def test_brightness_goes_both_ways(changed):
    means = changed["brightness"].mean((1, 2, 3)) - changed["picture"].mean()
    assert means.min() < -1 and means.max() > 1


@pytest.mark.parametrize("option", [{"rand_augment": (2, 10)}, {"aug_mix": 3}])
def test_every_picture_is_changed_in_its_own_way(option):
    samples = Samples(np.stack([noise()] * N), np.arange(N), range(N))
    augmentation = Augmentation(**OFF, **option)
    dataset = training_dataset(samples, RECIPE, N, augmentation=augmentation).take(2)
    first, again = (list(dataset.as_numpy_iterator()) for _ in range(2))
    for (images, labels), (images_again, labels_again) in zip(first, again, strict=True):
        assert images.dtype == np.float32 and images.min() >= 0 and images.max() <= 255.01
        assert len({image.tobytes() for image in images}) > N / 2
        np.testing.assert_array_equal(images, images_again)
        np.testing.assert_array_equal(labels, labels_again)


def test_aug_mix_blends_with_the_picture():
    """A grey picture stays grey, but for the edges that are moved in; a mixture stays near."""
    for images, labels in batches(3, aug_mix=1):
        assert images.shape == (N, *SIZE, 3)
        assert np.abs(images[..., 0] - images[..., 2]).max() < 1e-3
        distance = np.abs(images[:, 8, 12, 0] - labels * 30.0)
        assert np.median(distance) < 40
    textured = Samples(np.stack([noise()] * N), np.arange(N), range(N))
    ((images, _),) = batches(1, samples=textured, aug_mix=3)
    related = [np.corrcoef(image.ravel(), noise().ravel())[0, 1] for image in images]
    assert 0.1 < np.mean(related) < 0.999


@pytest.mark.parametrize(
    "option",
    [
        {"crop_area": (0, 1)},
        {"crop_area": (0.5, 0.2)},
        {"crop_aspect": (0, 1)},
        {"rand_augment": (0, 10)},
        {"rand_augment": (2, 31)},
        {"erasing": 1.5},
        {"aug_mix": 31},
        {"mix_up": -1},
        {"cut_mix": 2},
    ],
)
def test_wrong_values_are_refused(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"`{name}` must be .*Received: {name}="):
        Augmentation(**option)


def test_preview_is_a_grid_that_starts_with_the_pictures():
    samples = Samples(np.stack([noise(k) for k in range(3)]), [0, 1, 0], "ab")
    grid = np.asarray(preview(samples, RECIPE, Augmentation(mix_up=0.2), pictures=5, variants=2))
    assert grid.shape == (3 * 20 - 4, 3 * 28 - 4, 3)
    for k in range(3):
        np.testing.assert_array_equal(grid[20 * k : 20 * k + 16, :24], noise(k))
    assert (grid[16:20] == 255).all()
