"""All operations that can be compared, as one type."""

from __future__ import annotations

from gemvbench.attention_case import Attention
from gemvbench.case import Gemv

Case = Gemv | Attention
"""What every case has: id, bytes_moved, copy_bytes, fixed_bytes."""
