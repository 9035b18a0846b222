"""One module a family; the order here is that of `list_models`."""

# isort: off
from keras_vit.models import vit as vit
from keras_vit.models import hybrid as hybrid
from keras_vit.models import bit as bit
from keras_vit.models import dinov2 as dinov2
from keras_vit.models import deepvit as deepvit
