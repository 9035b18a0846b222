# %% [markdown]
# # Fine-tune a Vision Transformer
#
# A pre-trained encoder, a new task, a few pictures: what `keras.applications` users do with a ResNet, done
# with a ViT. Here with the small model and the pictures that come with the package, so that it runs in a
# minute without a network: `python tutorials/fine_tune.py`. What to change for a large model and your own
# pictures stands at the end.

# %%
import importlib.resources

import keras
import numpy as np

import keras_vit

keras.utils.set_random_seed(0)
with importlib.resources.files("keras_vit").joinpath("data/fashion_mnist.npz").open("rb") as file:
    data = dict(np.load(file))


def colour(images):
    """(N, 28, 28) grey -> (N, 28, 28, 3): the model takes RGB of 0..255."""
    return np.repeat(images[..., None], 3, axis=-1)


# %% [markdown]
# ## The task
#
# Shoes (labels 5, 7, 9) against everything else, with 40 pictures to learn from.

# %%
train_labels = np.isin(data["train_labels"], (5, 7, 9)).astype("int32")
test_labels = np.isin(data["test_labels"], (5, 7, 9)).astype("int32")
few = np.concatenate([np.flatnonzero(train_labels == k)[:20] for k in (0, 1)])
few = np.random.default_rng(0).permutation(few)

# %% [markdown]
# ## A new head on the trained encoder
#
# `pretrained_top=False` loads everything but the head. The new one starts from zero, as in section 3.2 of
# the ViT paper: every class has the same probability, and the loss begins at ln 2.

# %%
model = keras_vit.ViT_Mini4(classes=2, pretrained_top=False)
model.compile(
    keras.optimizers.SGD(0.03, momentum=0.9, global_clipnorm=1.0),
    "sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
before = model.evaluate(colour(data["test_images"]), test_labels, verbose=0)
model.fit(colour(data["train_images"][few]), train_labels[few], batch_size=8, epochs=10, verbose=2)
after = model.evaluate(colour(data["test_images"]), test_labels, verbose=0)
print(f"loss {before[0]:.3f} -> {after[0]:.3f}, accuracy {before[1]:.1%} -> {after[1]:.1%}")

# %% [markdown]
# ## At a higher resolution
#
# The paper fine-tunes at a higher resolution than it trained at. The encoder takes any multiple of the patch
# size; its positions are resampled when the weights are loaded, here from 7x7 to 10x10.

# %%
larger = keras_vit.ViT_Mini4(classes=2, pretrained_top=False, input_shape=(40, 40, 3))
encoder = larger.get_layer("vit_mini4_patch_encoder")
print(f"{encoder.grid[0]}x{encoder.grid[1]} patches, {larger.count_params():,} parameters")

# %% [markdown]
# ## For real
#
# ```python
# model = keras_vit.ViT_B16(classes=5, pretrained_top=False, input_shape=(384, 384, 3))   # downloads 330 MB
# recipe = keras_vit.recipe_of(model)
# image = keras_vit.prepare(keras_vit.load_image("photo.jpg"), recipe)    # upright, resized, cropped
# ```
#
# - Half precision: `keras.config.set_dtype_policy("mixed_bfloat16")` before the model is built.
# - Less memory: `gradient_checkpointing=True`.
# - Only the head: `for layer in model.layers[:-2]: layer.trainable = False`.
