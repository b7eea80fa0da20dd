"""What the processor of this machine can do, where bounds of rounding depend on it."""

from pathlib import Path

HAS_AVX512 = "avx512_vnni" in Path("/proc/cpuinfo").read_text()
"""Whether oneDNN multiplies matrices with AVX-512: it then adds bfloat16 up in float32, and a row
of a small float32 product rounds alike in batches of any size. Elsewhere neither holds.
"""
