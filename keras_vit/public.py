"""The public names of the package."""

from keras_vit import analysis as analysis
from keras_vit import distribution as distribution
from keras_vit import export as export
from keras_vit import layers as layers
from keras_vit import training as training
from keras_vit import weights as weights
from keras_vit.features import feature_extractor as feature_extractor
from keras_vit.images import load_image as load_image
from keras_vit.models import bit as bit
from keras_vit.models import deepvit as deepvit
from keras_vit.models import dinov2 as dinov2
from keras_vit.models import hybrid as hybrid
from keras_vit.models import vit as vit
from keras_vit.models.bit import *  # noqa: F403
from keras_vit.models.deepvit import *  # noqa: F403
from keras_vit.models.dinov2 import *  # noqa: F403
from keras_vit.models.hybrid import *  # noqa: F403
from keras_vit.models.vit import *  # noqa: F403
from keras_vit.preprocessing import prepare as prepare
from keras_vit.preprocessing import recipe_of as recipe_of
from keras_vit.registry import list_models as list_models
from keras_vit.registry import list_weights as list_weights

# Every family has its own: keras_vit.vit.preprocess_input, keras_vit.deepvit.with_cos_reg.
del map_similarity, preprocess_input, with_cos_reg  # noqa: F821
