"""`keras-vit list`"""

import json

import keras_vit
from keras_vit.registry import get_variant


def test_every_model_has_a_full_line(run):
    code, out, _ = run("list")
    header, *lines = out.splitlines()
    assert code == 0
    assert (
        header.split() == "model parameters patch width depth heads image default weights".split()
    )
    assert [line.split()[0] for line in lines] == keras_vit.list_models()
    assert "ViT_B16             86,567,656     16    768     12     12  224x224  imagenet" in lines
    assert not any(line != line.rstrip() or "…" in line or "\x1b" in line for line in lines)


def test_a_pattern_or_a_part_of_the_name(run):
    def names(pattern):
        return [row["model"] for row in json.loads(run("list", pattern, "--json")[1])]

    assert names("vit_b*") == ["ViT_B8", "ViT_B16", "ViT_B32"]
    assert names("mini4") == ["ViT_Mini4"]


def test_numbers_as_json(run):
    code, out, _ = run("list", "ViT_S8", "--json")
    assert code == 0
    assert json.loads(out) == [
        {
            "model": "ViT_S8",
            "parameters": 22_055_272,
            "patch": 8,
            "width": 384,
            "depth": 12,
            "heads": 6,
            "image": [224, 224],
            "default_weights": None,
        }
    ]


def test_named_sets_with_their_addresses(run):
    code, out, _ = run("list", "ViT_B16", "--weights")
    lines = out.splitlines()[1:]
    rows = get_variant("ViT_B16").weights
    assert code == 0
    assert [line.split()[1] for line in lines] == [row.name for row in rows]
    assert [line.split()[-1] for line in lines] == [row.url for row in rows]
    assert lines[0].split()[2:6] == ["224x224", "1,000", "84.5", "Apache-2.0"]
    assert json.loads(run("list", "ViT_B16", "--weights", "--json")[1])[0]["top1"] == 84.534


def test_a_model_without_published_weights(run):
    assert run("list", "ViT_S8", "--weights", "--json")[:2] == (0, "[]\n")
