"""What a model attends to, and how alike its blocks are.

    maps = analysis.attention_maps(model, images)  # a (B, heads, N, N) for every block
    layout = analysis.token_layout(model, images)  # where its tokens lie in the images
    heat = analysis.class_attention_image(analysis.attention_rollout(maps), layout)  # (B, H, W)
    pixels = analysis.attention_distance(maps, layout)  # (blocks, heads)

Arrays go in and come out as numpy, float32.
"""

from keras_vit.analysis import plots as plots
from keras_vit.analysis.embeddings import patch_filters as patch_filters
from keras_vit.analysis.embeddings import position_similarity as position_similarity
from keras_vit.analysis.maps import TokenLayout as TokenLayout
from keras_vit.analysis.maps import attention_maps as attention_maps
from keras_vit.analysis.maps import iterate_attention_maps as iterate_attention_maps
from keras_vit.analysis.maps import token_layout as token_layout
from keras_vit.analysis.measures import SimilarBlocks as SimilarBlocks
from keras_vit.analysis.measures import attention_distance as attention_distance
from keras_vit.analysis.measures import attention_rollout as attention_rollout
from keras_vit.analysis.measures import block_similarity as block_similarity
from keras_vit.analysis.measures import class_attention_grid as class_attention_grid
from keras_vit.analysis.measures import class_attention_image as class_attention_image
from keras_vit.analysis.measures import feature_similarity as feature_similarity
from keras_vit.analysis.measures import head_similarity as head_similarity
from keras_vit.analysis.measures import similar_blocks as similar_blocks
from keras_vit.analysis.report import html_report as html_report
