"""`keras-vit explain`"""

import re

import keras
import pytest

from keras_vit import load_image
from keras_vit.analysis import html_report
from keras_vit.layers import Normalize
from keras_vit.preprocessing import Recipe, prepare

EXACT = ("--model", "Mini", "--precision", "float32")


def test_the_page_and_what_is_printed(run, photos, mini, model, tmp_path):
    target = tmp_path / "page.html"
    code, out, _ = run(
        "explain", photos / "1.png", *EXACT, "--weights", mini, "-o", target, "--top", 3
    )
    image = prepare(load_image(photos / "1.png"), Recipe((28, 28)))
    scores = model().predict_on_batch(image[None].astype("float32"))[0]
    best = [(f"class {k}", float(scores[k])) for k in (-scores).argsort()[:3]]
    title = f"Mini, weights {mini}, float32"
    assert code == 0
    first, *rest = out.splitlines()
    assert re.fullmatch(rf"{re.escape(str(target))}: {re.escape(title)}; \d+ KB", first)
    assert rest == [f"   {score:.4f}  {name}" for name, score in best]
    found = target.read_text(encoding="utf-8")
    expected = html_report(model(), image, title=title, about="1.png", predictions=best)
    assert without_pictures(found) == without_pictures(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.html", "photos"]


def without_pictures(page):
    """The words of a page, for numbers that may differ in their last digit."""
    return re.sub(r'"(data:image|levels": )[^"]*"', "", page.split("<script>")[0])


def test_the_shipped_model_needs_no_network(run, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("explain", photos / "10.jpg", "--model", "ViT_Mini4")
    assert code == 0
    assert out.startswith("report.html: ViT_Mini4, weights fashion-mnist, float32; ")
    assert "28 x 28 pixels" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_keras_file_without_a_head(run, photos, model, tmp_path):
    model(include_top=False).save(tmp_path / "tokens.keras")
    code, out, _ = run(
        "explain", photos / "1.png", "--model", tmp_path / "tokens.keras", "-o", tmp_path / "p.html"
    )
    assert (code, len(out.splitlines())) == (0, 1)
    assert '<ol id="predictions">' not in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_a_keras_file_of_features_or_logits(run, photos, model, tmp_path):
    scores = []
    for name, options in (
        ("features", {"include_top": False, "pooling": "token"}),
        ("logits", {"classifier_activation": None}),
        ("softmax", {}),
    ):
        model(**options).save(tmp_path / f"{name}.keras")
        file = tmp_path / f"{name}.keras"
        code, out, _ = run("explain", photos / "1.png", "--model", file, "-o", tmp_path / "p.html")
        assert code == 0
        scores.append([line.split()[0] for line in out.splitlines()[1:]])
        code, out, err = run("classify", photos / "1.png", "--model", file)
        assert ("features.keras has no classification head" in err) == (name == "features")
        assert all(score in out for score in scores[-1])
    features, logits, softmax = scores
    assert features == [] and logits == softmax


@pytest.mark.parametrize("there", [True, False])
def test_a_failure_leaves_what_was_there(run, photos, mini, tmp_path, there):
    target = tmp_path / "page.html"
    if there:
        target.write_text("old")
    code, out, err = run("explain", photos / "no.png", *EXACT, "--weights", mini, "-o", target)
    assert (code, out) == (2, "")
    assert "no.png" in err
    assert (target.read_text() if target.exists() else None) == ("old" if there else None)


def test_refusals(run, photos, mini, tmp_path):
    target = tmp_path / "page.html"
    code, _, err = run("explain", photos / "1.png", "-o", tmp_path / "page.pdf")
    assert (code, "must end with .html. Received" in err) == (2, True)
    normalize = Normalize((0.5,) * 3, (0.5,) * 3)
    flat = keras.Sequential(
        [keras.Input((28, 28, 3)), normalize, keras.layers.Flatten()], name="flat"
    )
    flat.save(tmp_path / "flat.keras")
    code, _, err = run(
        "explain", photos / "1.png", "--model", tmp_path / "flat.keras", "-o", target
    )
    assert code == 2
    assert "flat has no attention: no layer of it is a TransformerBlock" in err
    assert not target.exists()
