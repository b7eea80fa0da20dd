"""`lingo` with float32 products in full precision: `python -m tools.day.exact train ...`.

By default TensorFlow rounds their operands on accelerators, to TF32 on GPUs and to bfloat16 on
TPUs. The switch for TF32 disables both.
"""

from __future__ import annotations

import tensorflow as tf

from lingo.cli.main import program

if __name__ == "__main__":
    tf.config.experimental.enable_tensor_float_32_execution(False)
    program()
