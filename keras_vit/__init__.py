"""Vision Transformers for Keras 3, with the published weights."""

import importlib as _importlib
import os as _os
import sys as _sys

__version__ = "0.1.0"

if _sys.argv and _os.path.basename(_sys.argv[0]) in ("keras-vit", "keras-vit.exe"):
    # The program answers --help without Keras, which takes seconds to load; its commands load the rest.
    def __getattr__(name):
        return getattr(_importlib.import_module("keras_vit.public"), name)

else:
    from keras_vit.public import *  # noqa: F403
