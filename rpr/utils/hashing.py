"""A hash that does not depend on the process or the machine, unlike Python's own."""
import hashlib


def stable_hash(*parts: int | str) -> int:
    """A hash of 64 bits of the parts in their order."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "little")
