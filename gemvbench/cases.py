"""All operations that can be compared, as one type."""

from __future__ import annotations

from gemvbench.case import Gemv

Case = Gemv
"""What every case has: id, bytes_moved, copy_bytes, fixed_bytes."""
