"""Keeps the many small tests of the layers fast."""

import gc

gc.collect()
gc.freeze()  # `clear_session` after every test then walks that test's objects, not all of TensorFlow
