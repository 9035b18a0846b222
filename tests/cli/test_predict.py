"""`keras-vit classify` and `keras-vit embed`"""

import json

import numpy as np
import pytest
from PIL import Image

from keras_vit import load_image
from keras_vit.preprocessing import Recipe, prepare

LABELS = tuple(f"label {k}" for k in range(10))
EXACT = ("--model", "Mini", "--precision", "float32")


def prepared(paths, size=(28, 28)):
    recipe = Recipe(size)
    return np.stack([prepare(load_image(path), recipe) for path in paths])


def files_of(folder):
    return [folder / name for name in ("1.png", "10.jpg", "2.webp")]


def classified(run, *arguments):
    """(results, failures) of `classify --json`."""
    _, out, _ = run("classify", *arguments, "--json")
    answer = json.loads(out)
    return answer["results"], answer["failures"]


def test_scores_are_those_of_the_model(run, photos, mini, model):
    code, out, err = run("classify", photos, *EXACT, "--weights", mini, "--json", "--top", 10)
    expected = model().predict(prepared(files_of(photos)), verbose=0)
    answer = json.loads(out)
    assert (code, answer["failures"]) == (0, [])
    assert answer["model"] == f"Mini, weights {mini}, float32"
    assert f"{answer['model']}, 28x28 pixels\n" in err
    assert [row["path"] for row in answer["results"]] == list(map(str, files_of(photos)))
    for row, scores in zip(answer["results"], expected, strict=True):
        assert [p["name"] for p in row["predictions"]] == [
            f"class {k}" for k in np.argsort(-scores, kind="stable")
        ]
        found = [p["score"] for p in row["predictions"]]
        np.testing.assert_allclose(found, np.sort(scores)[::-1], atol=1e-6)


def test_half_precision(run, photos, mini):
    options = ("--model", "Mini", "--weights", mini, "--precision", "bfloat16")
    exact, _ = classified(run, photos, *EXACT, "--weights", mini, "--top", 1)
    rough, _ = classified(run, photos, *options, "--top", 1)
    pairs = [(a["predictions"][0], b["predictions"][0]) for a, b in zip(exact, rough, strict=True)]
    differences = [abs(a["score"] - b["score"]) for a, b in pairs]
    assert all(a["name"] == b["name"] for a, b in pairs)
    assert 0 < max(differences) < 0.05


def test_batches_change_nothing(run, photos, mini):
    one, _ = classified(run, photos, *EXACT, "--weights", mini, "--batch-size", 2)
    all_at_once, _ = classified(run, photos, *EXACT, "--weights", mini)
    assert len(one) == 3
    for a, b in zip(one, all_at_once, strict=True):
        assert a["predictions"][0]["score"] == pytest.approx(b["predictions"][0]["score"], abs=1e-6)


def test_the_table_has_a_full_line_for_every_class(run, photos, mini):
    code, out, _ = run("classify", photos / "1.png", *EXACT, "--weights", mini, "--top", 2)
    header, *lines = out.splitlines()
    assert code == 0
    assert header.split() == ["image", "score", "class"]
    assert len(lines) == 2
    for line in lines:
        assert line.startswith(f"{photos / '1.png'}  0.")


def test_damaged_files_are_named_and_the_others_answered(run, damaged, mini):
    code, out, err = run("classify", damaged, *EXACT, "--weights", mini, "--json")
    answer = json.loads(out)
    bad = ["empty.jpg", "half.jpg", "page.jpg", "short.png"]
    assert code == 1
    assert [row["path"] for row in answer["results"]] == list(map(str, files_of(damaged)))
    assert [row["path"] for row in answer["failures"]] == [str(damaged / name) for name in bad]
    assert "an HTML page" in answer["failures"][2]["error"]
    for name in bad:
        assert sum(name in line for line in err.splitlines()) == 1
    assert "keras-vit: 4 of 7 images could not be read\n" in err
    assert "keras-vit: skipped, suffix '.txt' is not one of .jpg" in err
    assert f"{damaged / 'notes.txt'}\n" in err


def test_only_damaged_files(run, damaged, mini):
    code, out, err = run("classify", damaged / "half.jpg", *EXACT, "--weights", mini)
    assert (code, out) == (1, "")
    assert "keras-vit: 1 of 1 images could not be read\n" in err


def test_many_skipped_files_are_one_line(run, photos, mini):
    for k in range(8):
        (photos / f"{k}.txt").touch()
    _, _, err = run("classify", photos, *EXACT, "--weights", mini)
    skipped = [line for line in err.splitlines() if "skipped" in line]
    assert len(skipped) == 1
    assert skipped[0].endswith(f"{photos / '4.txt'} and 3 more")


def test_files_and_patterns_in_the_order_given(run, photos, mini):
    inputs = (photos / "2.webp", f"{photos}/*.png")
    results, _ = classified(run, *inputs, *EXACT, "--weights", mini)
    assert [row["path"] for row in results] == [str(photos / "2.webp"), str(photos / "1.png")]


def test_photographs_are_turned_upright(run, tmp_path, mini, model):
    upright = Image.fromarray(np.arange(60 * 40 * 3, dtype="uint8").reshape(60, 40, 3))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right to see it upright
    upright.save(tmp_path / "upright.png")
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png", exif=exif)
    results, _ = classified(run, tmp_path, *EXACT, "--weights", mini)
    turned, seen = ([p["score"] for p in row["predictions"]] for row in results)
    assert turned == pytest.approx(seen, abs=1e-6)
    as_stored = model().predict(
        prepare(np.rot90(np.asarray(upright)).copy(), Recipe((28, 28)))[None], verbose=0
    )
    assert as_stored.max() != pytest.approx(turned[0], abs=1e-2)


def test_a_folder_without_images(run, tmp_path, mini):
    code, out, err = run("classify", tmp_path, *EXACT, "--weights", mini)
    assert (code, out) == (2, "")
    assert err == f"keras-vit: error: There is no image file in {str(tmp_path)!r}.\n"


def test_a_path_that_does_not_exist(run, tmp_path):
    code, _, err = run("classify", tmp_path / "nothing.jpg")
    assert code == 2
    assert err.startswith("keras-vit: error: Cannot read an image: no such file or folder")


def test_a_named_set_brings_its_recipe_and_its_names(run, photos, mini, model, monkeypatch):
    monkeypatch.setattr("keras_vit.models.fitting.fetch", lambda url, sha256: mini)
    results, _ = classified(run, photos, *EXACT, "--top", 1)
    recipe = Recipe((28, 28), crop_fraction=0.7)
    pictures = np.stack([prepare(load_image(path), recipe) for path in files_of(photos)])
    expected = model().predict(pictures, verbose=0)
    for row, scores in zip(results, expected, strict=True):
        assert row["predictions"] == [
            {
                "id": LABELS[scores.argmax()],
                "name": LABELS[scores.argmax()],
                "score": pytest.approx(scores.max(), abs=1e-6),
            }
        ]


def test_names_of_imagenet(run, photos, tmp_path, model):
    thousand = model(weights=None, classes=1000)
    thousand.get_layer("mini_head").bias.assign(np.arange(1000) == 134)
    thousand.save(tmp_path / "model.keras")
    options = (photos / "1.png", "--model", tmp_path / "model.keras", "--top", 1)
    assert run("classify", *options)[1].splitlines()[1].endswith("  crane (n02012849)")
    results, _ = classified(run, *options)
    assert results[0]["predictions"][0] == {
        "id": "n02012849",
        "name": "crane",
        "score": pytest.approx(np.e / (np.e + 999), abs=1e-6),
    }


def test_names_from_a_file(run, photos, mini, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(f"name {k}" for k in range(10)) + "\n\n")
    options = (photos, *EXACT, "--weights", mini, "--classes-file", names)
    results, _ = classified(run, *options)
    plain, _ = classified(run, *options[:-2])
    assert [p["name"].replace("name", "class") for p in results[0]["predictions"]] == [
        p["name"] for p in plain[0]["predictions"]
    ]
    names.write_text("one\ntwo\n")
    code, out, err = run("classify", *options)
    assert (code, out) == (2, "")
    assert "Received: 2 lines in" in err
    assert "for the 10 classes of Mini" in err


def test_a_keras_file_is_a_model(run, photos, mini, tmp_path, model):
    model().save(tmp_path / "mine.keras")
    found, _ = classified(run, photos, "--model", tmp_path / "mine.keras")
    expected, _ = classified(run, photos, *EXACT, "--weights", mini)
    assert [row["predictions"][0]["name"] for row in found] == [
        row["predictions"][0]["name"] for row in expected
    ]
    for option in (("--weights", mini), ("--image-size", 32), ("--precision", "bfloat16")):
        code, _, err = run("classify", photos, "--model", tmp_path / "mine.keras", *option)
        assert code == 2
        assert "A .keras file has its own weights, image size, pooling and precision" in err


def test_a_keras_file_that_is_none(run, photos, tmp_path):
    (tmp_path / "page.keras").write_text("<html>")
    code, _, err = run("classify", photos, "--model", tmp_path / "page.keras")
    assert code == 2
    assert err.startswith("keras-vit: error: ")
    assert "page.keras" in err


def test_models_that_pictures_cannot_be_cut_for(run, photos, mini, tmp_path, model):
    bare = model(include_preprocessing=False)
    bare.save(tmp_path / "bare.keras")
    code, _, err = run("classify", photos, "--model", tmp_path / "bare.keras")
    assert code == 2
    assert "Build it with include_preprocessing=True" in err
    model(include_top=False).save(tmp_path / "tokens.keras")
    code, _, err = run("classify", photos, "--model", tmp_path / "tokens.keras")
    assert (code, "tokens.keras has no classification head" in err) == (2, True)
    code, _, err = run(
        "embed", photos, "--model", tmp_path / "tokens.keras", "-o", tmp_path / "features.npz"
    )
    assert code == 2
    assert "must give one vector a picture. Received" in err


def test_another_image_size(run, photos, mini, model):
    results, _ = classified(
        run, photos, *EXACT, "--weights", mini, "--image-size", "32x40", "--top", 10
    )
    expected = model(input_shape=(32, 40, 3)).predict(
        prepared(files_of(photos), (32, 40)), verbose=0
    )
    found = [row["predictions"][0]["score"] for row in results]
    np.testing.assert_allclose(found, expected.max(axis=1), atol=1e-6)
    code, _, err = run("classify", photos, *EXACT, "--weights", mini, "--image-size", "30")
    assert code == 2
    assert "patch size 4" in err


def test_weights_that_are_not_there_say_where_to_put_them(run, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    code, out, err = run("classify", photos)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(
        "keras-vit: error: Cannot fetch https://storage.googleapis.com/vit_models"
    )
    assert f"by hand at {tmp_path / 'keras_vit'}" in err
    assert err.endswith("`--model ViT_Mini4` needs no network.\n")


def test_weights_without_a_head(run, photos, mini, tmp_path, model):
    headless = tmp_path / "headless.weights.h5"
    model(include_top=False).save_weights(headless)
    code, _, err = run("classify", photos, *EXACT, "--weights", headless)
    assert code == 2
    assert f"no classification head: {headless}. `keras-vit embed` gives their features" in err


def test_a_model_without_published_weights(run, photos):
    code, _, err = run("classify", photos, "--model", "vit_s8")
    assert code == 2
    assert "ViT_S8 has no published weights. Give a file by --weights.\n" in err


def embedded(run, tmp_path, *arguments):
    """The arrays that `embed` writes."""
    code, out, _ = run("embed", *arguments, "-o", tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as file:
        arrays = dict(file)
    assert arrays["features"].dtype == "float32"
    assert out == f"{tmp_path / 'out.npz'}: {len(arrays['paths'])} features of width 16\n"
    return code, arrays["paths"], arrays["features"]


@pytest.mark.parametrize("pooling", [None, "token", "avg"])
def test_embed(run, photos, mini, tmp_path, pooling, model):
    options = ("--model", "Mini", "--weights", mini)
    options += ("--pooling", pooling) if pooling else ()
    code, paths, features = embedded(run, tmp_path, photos, *options)
    features_of = model(include_top=False, pooling=pooling or "token")
    expected = features_of.predict(prepared(files_of(photos)), verbose=0)
    assert code == 0
    assert paths.tolist() == list(map(str, files_of(photos)))
    np.testing.assert_allclose(features, expected, atol=1e-6)


@pytest.mark.parametrize("top", [True, False])
def test_embed_with_a_keras_file(run, photos, mini, tmp_path, top, model):
    pooling = {} if top else {"pooling": "token"}
    model(include_top=top, **pooling).save(tmp_path / "mine.keras")
    _, _, features = embedded(run, tmp_path, photos, "--model", tmp_path / "mine.keras")
    _, _, expected = embedded(run, tmp_path, photos, "--model", "Mini", "--weights", mini)
    np.testing.assert_allclose(features, expected, atol=1e-6)


def test_embed_with_damaged_files(run, damaged, mini, tmp_path):
    options = ("--model", "Mini", "--weights", mini)
    code, paths, _ = embedded(run, tmp_path, damaged, *options)
    assert code == 1
    assert paths.tolist() == list(map(str, files_of(damaged)))
    (tmp_path / "out.npz").unlink()
    code, out, _ = run("embed", damaged / "half.jpg", *options, "-o", tmp_path / "out.npz")
    assert (code, out) == (1, "")
    assert not (tmp_path / "out.npz").exists()


def test_an_interrupted_embed_leaves_the_old_file(run, photos, mini, tmp_path, monkeypatch):
    def interrupted(*arguments, **arrays):
        arguments[0].write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    (tmp_path / "out.npz").write_text("old")
    options = ("--model", "Mini", "--weights", mini, "-o", tmp_path / "out.npz")
    code, _, err = run("embed", photos, *options)
    assert code == 130
    assert err.endswith("keras-vit: interrupted\n")
    assert (tmp_path / "out.npz").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.npz", "photos"]


def test_embed_refuses_other_outputs_before_any_work(run, photos):
    code, _, err = run("embed", photos, "-o", "out.csv")
    assert code == 2
    assert err == (
        "keras-vit: error: The name of the output must end with .npz. Received: 'out.csv'.\n"
    )
