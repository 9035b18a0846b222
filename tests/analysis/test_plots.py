"""Figures can be drawn, show the numbers that went in, and say what their axes are."""

import io
import sys

import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image

from keras_vit.analysis import plots

RANDOM = np.random.default_rng(0)
SIMILARITY = RANDOM.uniform(-1, 1, (4, 4))
FIGURES = {
    "attention_overlay": (RANDOM.uniform(0, 255, (16, 24, 3)), RANDOM.uniform(0, 1, (16, 24))),
    "attention_gallery": (RANDOM.uniform(0, 1, (3, 2, 4, 6)),),
    "attention_distance": (RANDOM.uniform(0, 90, (4, 3)),),
    "block_similarity": (SIMILARITY,),
    "head_similarity": (RANDOM.uniform(0, 1, (4, 3, 3)),),
    "feature_similarity": (RANDOM.uniform(0.5, 1, 3),),
    "position_similarity": (RANDOM.uniform(-1, 1, (2, 3, 2, 3)),),
    "patch_filters": (RANDOM.uniform(0, 1, (5, 8, 8, 3)),),
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure(name):
    figure = getattr(plots, name)(*FIGURES[name])
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert np.asarray(Image.open(file)).std() > 10  # not an empty page
    words = [text.get_text() for text in figure.findobj(lambda x: hasattr(x, "get_text"))]
    assert any(len(word) > 5 for word in words)
    assert not pyplot.get_fignums()


def test_numbers():
    axes = plots.attention_distance(FIGURES["attention_distance"][0]).axes[0]
    *heads, mean = (line.get_ydata() for line in axes.lines)
    np.testing.assert_array_equal(np.transpose(heads), FIGURES["attention_distance"][0])
    np.testing.assert_allclose(mean, FIGURES["attention_distance"][0].mean(axis=1))
    assert axes.get_ylabel() == "mean attention distance (pixels)"
    matrix = plots.block_similarity(SIMILARITY).axes[0].images[0]
    np.testing.assert_array_equal(matrix.get_array(), SIMILARITY)
    panels = plots.attention_gallery(FIGURES["attention_gallery"][0]).axes
    np.testing.assert_array_equal(
        panels[3].images[0].get_array(), FIGURES["attention_gallery"][0][1, 1]
    )
    assert [panels[1].get_title(), panels[2].get_ylabel()] == ["head 1", "block 1"]


def test_a_grey_image():
    figure = plots.attention_overlay(np.full((8, 8, 1), 300.0), np.eye(8))
    assert figure.axes[0].images[0].get_array().max() == 255


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "keras-vit-zoo\[plots\]"'):
        plots.attention_distance([[1.0]])
