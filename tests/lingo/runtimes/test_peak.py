"""The measured peak is a plausible speed of the machine."""

from __future__ import annotations

import time

import numpy as np
import pytest

from lingo.runtimes.runtime import matmul_flops_per_second


def test_the_peak_is_near_that_of_an_independent_product() -> None:
    matrix = np.ones([1024, 1024], np.float32)
    matrix @ matrix
    start = time.perf_counter()
    matrix @ matrix
    other = 2 * 1024**3 / (time.perf_counter() - start)
    assert other / 20 < matmul_flops_per_second("float32") < other * 20


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_measured_once_in_a_process(dtype: str) -> None:
    assert matmul_flops_per_second(dtype) == matmul_flops_per_second(dtype) > 0
