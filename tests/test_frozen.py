"""The reference kernel never changes: history is measured against it."""

from __future__ import annotations

import hashlib

import pytest

from gemvbench.source import KERNELS

HASHES = {
    "opencl/frozen.cl": "6ec61e6f467185be29cb833b01988dc395dab349f7937b18fb0c3b5e4f3044f8",
    "cuda/frozen.cu": "6d214815ddc0cb1722a80a1278161ee32987f9c67f8a1df4b15275da1d8e7a8f",
}


@pytest.mark.parametrize("name", HASHES)
def test_the_frozen_kernel_is_frozen(name):
    """Do not update a hash: give a changed kernel another name."""
    data = (KERNELS / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == HASHES[name]
    assert b"#include" not in data
