"""Digests of data by blocks, as ``b3sum`` prints them for the whole."""

from __future__ import annotations

from typing import Iterable

from ._endpoint import Buffer
from ._library import call, ffi, native
from ._memory import lend

#: Length of a digest. Bytes.
LENGTH = 32


def digest_block(data: Buffer, offset: int, size: int, block: int) -> bytes:
    """The digest of the block at ``offset`` of something of ``size`` bytes that is taken in
    blocks of ``block`` bytes, a power of two from 1024 on; where all is in one block, that of
    the whole."""
    digest, lent = ffi.new("uint8_t[]", LENGTH), lend(data)
    call(native.isthmus_digest_block, lent, len(lent), offset, size, block, digest)
    return bytes(ffi.buffer(digest))


def digest_whole(digests: Iterable[bytes], size: int, block: int) -> bytes:
    """The digest of the whole, from those of its blocks in order."""
    digest, each = ffi.new("uint8_t[]", LENGTH), list(digests)
    if any(len(one) != LENGTH for one in each):
        raise ValueError(f"a digest has {LENGTH} bytes")
    call(native.isthmus_digest_whole, b"".join(each), len(each), size, block, digest)
    return bytes(ffi.buffer(digest))
