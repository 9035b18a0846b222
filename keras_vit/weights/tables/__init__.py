"""Every checkpoint format that is known, the more special ones first."""

from keras_vit.weights.tables.bit import BIT_KERAS, BIT_NPZ, BIT_TIMM
from keras_vit.weights.tables.deepvit import DEEPVIT
from keras_vit.weights.tables.google import GOOGLE
from keras_vit.weights.tables.hugging_face import HF_DINOV2, HF_VIT
from keras_vit.weights.tables.keras_names import KERAS
from keras_vit.weights.tables.timm import DINOV2, TIMM

FORMATS = (GOOGLE, DINOV2, DEEPVIT, TIMM, HF_VIT, HF_DINOV2, BIT_NPZ, BIT_TIMM, KERAS, BIT_KERAS)
