import dataclasses

import pytest

from keras_vit.training.recipes import RECIPES, get_recipe


def test_published_numbers():
    finetune, deit = get_recipe("vit-finetune"), get_recipe("deit-scratch")
    assert (finetune.optimizer, finetune.momentum, finetune.clip_norm) == ("sgd", 0.9, 1.0)
    assert (deit.weight_decay, deit.label_smoothing, deit.ema_momentum) == (0.05, 0.1, 0.99996)
    assert all(recipe.source and recipe.summary for recipe in RECIPES.values())


def test_learning_rate_is_proportional_to_the_batch_only_where_published_so():
    assert get_recipe("deit-scratch").peak_learning_rate(1024) == pytest.approx(1e-3)
    assert get_recipe("augreg-scratch").peak_learning_rate(64) == 1e-3


@pytest.mark.parametrize(
    "field", [{"optimizer": "adam"}, {"loss": "hinge"}, {"layer_decay": 1.5}, {"ema_momentum": -1}]
)
def test_numbers_out_of_range(field):
    (name,) = field
    with pytest.raises(ValueError, match=f"{name} must be"):
        dataclasses.replace(get_recipe("vit-finetune"), **field)


def test_unknown_recipe_lists_the_known_ones():
    with pytest.raises(ValueError, match="recipe='sgd'.*vit-finetune"):
        get_recipe("sgd")
