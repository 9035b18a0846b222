"""Training: labelled pictures, their batches and their augmentation."""

from keras_vit.training.augmentation import Augmentation as Augmentation
from keras_vit.training.opening import list_splits as list_splits
from keras_vit.training.opening import open_samples as open_samples
from keras_vit.training.pipeline import evaluation_dataset as evaluation_dataset
from keras_vit.training.pipeline import steps_per_epoch as steps_per_epoch
from keras_vit.training.pipeline import training_dataset as training_dataset
from keras_vit.training.preview import preview as preview
from keras_vit.training.samples import Check as Check
from keras_vit.training.samples import Samples as Samples
from keras_vit.training.samples import check_samples as check_samples
from keras_vit.training.splitting import few_shot as few_shot
from keras_vit.training.splitting import load_split as load_split
from keras_vit.training.splitting import save_split as save_split
from keras_vit.training.splitting import split_samples as split_samples
