"""Keras layers of the Vision Transformers."""

from keras_vit.layers.attention import AttentionPooling as AttentionPooling
from keras_vit.layers.attention import MultiHeadSelfAttention as MultiHeadSelfAttention
from keras_vit.layers.block import TransformerBlock as TransformerBlock
from keras_vit.layers.feed_forward import Mlp as Mlp
from keras_vit.layers.feed_forward import SwiGLU as SwiGLU
from keras_vit.layers.patches import PatchEncoder as PatchEncoder
from keras_vit.layers.patches import Patches as Patches
from keras_vit.layers.pooling import PoolPatches as PoolPatches
from keras_vit.layers.pooling import TakeToken as TakeToken
from keras_vit.layers.pooling import TokensToGrid as TokensToGrid
from keras_vit.layers.preprocessing import Normalize as Normalize
from keras_vit.layers.re_attention import ReAttention as ReAttention
from keras_vit.layers.regularization import DropPath as DropPath
from keras_vit.layers.regularization import LayerScale as LayerScale
from keras_vit.layers.regularization import PatchDropout as PatchDropout
from keras_vit.layers.stem import ConvStem as ConvStem
