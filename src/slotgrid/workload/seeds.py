"""Seeds: every session has its own random stream, so plans of different sizes share their sessions."""

from __future__ import annotations

import hashlib
import random


def derive_seed(base_seed: int, name: str) -> int:
    """64-bit seed: the first 8 bytes, big-endian, of SHA-256 over the UTF-8 text ``base:name``."""
    return int.from_bytes(hashlib.sha256(f"{base_seed}:{name}".encode()).digest()[:8], "big")


def session_random(base_seed: int, session_id: str) -> random.Random:
    """The random stream of one session."""
    return random.Random(derive_seed(base_seed, session_id))
