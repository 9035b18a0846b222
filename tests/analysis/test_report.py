"""The page: what it says, and what a browser shows of it."""

import dataclasses
import re

import browser
import numpy as np
import pytest

from keras_vit.analysis import attention_maps, class_attention_grid, html_report, token_layout
from keras_vit.models import plain

BASE = plain.Config(patch=8, width=16, depth=3, heads=2, mlp=32, image=(16, 24))
_replace = dataclasses.replace


def test_what_it_says(make, images):
    page = html_report(
        make(),
        images[0],
        title="a <model>",
        about="cat & dog.png",
        predictions=[("tabby & <cat>", 0.75), ("dog", 0.125)],
    )
    for text in (
        "a &lt;model&gt;",
        "cat &amp; dog.png",
        "tabby &amp; &lt;cat&gt;",
        "75.0%",
        "12.5%",
        "24 x 16 pixels",
        "how much the class token draws on each place",
    ):
        assert text in page
    assert "$" not in page.replace("$H", "")
    assert set(re.findall(r'(?:src|href)="([^:]*):', page)) == {"data"}
    assert not re.search(r"https?://|@import|url\(", page)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (_replace(BASE, tokens=(), classifier="gap"), "how much the mean of the patches draws"),
        (_replace(BASE, attention=plain.re_attention), "those before re-attention mixes the heads"),
        (_replace(BASE, depth=1, registers=4), "here 0 of the 1 do"),
    ],
)
def test_other_models(make, images, config, text):
    page = html_report(make(config), images[0], title="model")
    assert text in " ".join(page.split())
    assert '<ol id="predictions">' not in page


def test_blocks_that_are_alike_are_counted(make, images):
    model = make(BASE)
    for i in range(3):
        for variable in model.get_layer(f"tiny_block_{i}").attention.query.weights:
            variable.assign(np.zeros(variable.shape))  # every map is uniform
    assert "here 2 of the 3 do" in " ".join(html_report(model, images[0], title="model").split())


def test_the_size_of_a_page(make):
    config = _replace(BASE, patch=16, heads=12, width=12, image=(224, 224))
    noise = np.random.default_rng(0).uniform(0, 255, (224, 224, 3))
    page = html_report(make(_replace(config, depth=2)), noise, title="as ViT-B/16")
    maps = 10 * 12 * 196 * 4 / 3  # of the ten other blocks
    assert len(page) + maps < 2_000_000


def test_errors_are_those_of_the_maps(make, images):
    with pytest.raises(ValueError, match="Received: images.shape=.1, 2, 16, 24, 3."):
        html_report(make(), images, title="model")


def test_in_a_browser(make, images, tmp_path):
    model = make(BASE)
    (tmp_path / "page.html").write_text(html_report(model, images[0], title="m"), encoding="utf-8")
    layout = token_layout(model, images)
    maps = [class_attention_grid(a[:1], layout)[0] for a in attention_maps(model, images)]
    with browser.page(tmp_path / "profile") as page:
        page.open((tmp_path / "page.html").as_uri())
        assert page.evaluate("document.getElementById('number').value") == "Block 3 of 3"
        check_maps(page, maps[2])
        page.evaluate("document.getElementById('block').focus()")
        page.press("ArrowLeft", 37)
        assert page.evaluate("document.getElementById('number').value") == "Block 2 of 3"
        check_maps(page, maps[1])
        rings = "[...document.querySelectorAll('svg .now[visibility=visible]')]"
        assert page.evaluate(f"{rings}.map(x => x.dataset.block)") == ["2", "2"]

        page.evaluate("document.getElementById('strength').focus()")
        page.press("Home", 36)
        assert page.evaluate("document.getElementById('heat').style.opacity") == "0"
        sizes = "[...document.images].map(x => [x.naturalWidth, x.naturalHeight])"
        assert page.evaluate(sizes) == [[432, 288]] * 3
        assert page.evaluate(
            "performance.getEntriesByType('resource').every(x => x.name.startsWith('data:'))"
        )

        page.open((tmp_path / "page.html").as_uri() + "?", width=320)
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
        assert page.errors == []


def check_maps(page, grids):
    """The canvases show the maps of the heads, each from black to the brightest colour."""
    script = (
        "[...document.querySelectorAll('canvas')].map(x => "
        "[...x.getContext('2d').getImageData(0, 0, x.width, x.height).data])"
    )
    shown = np.reshape(page.evaluate(script), (len(grids), *grids[0].shape, 4))
    captions = page.evaluate(
        "[...document.querySelectorAll('#heads figcaption')].map(x => x.textContent)"
    )
    for head, (grid, pixels, caption) in enumerate(zip(grids, shown, captions, strict=True), 1):
        light = pixels[..., :3].sum(axis=-1)
        assert np.argmax(light) == np.argmax(grid)
        np.testing.assert_array_equal(np.argsort(light, axis=None), np.argsort(grid, axis=None))
        assert pixels[np.unravel_index(np.argmax(grid), grid.shape)].tolist() == [
            252,
            255,
            164,
            255,
        ]
        assert caption.startswith(f"Head {head}: peak {grid.max():.2g}, looks ")


def test_a_missing_browser_fails_on_ci_alone(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no browser on the PATH: chromium"):
        browser.executable()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no browser on the PATH: chromium"):
        browser.executable()
