"""Copies ranges between files inside the kernel: `clone_range` clones, `copy_range` uses one of the other methods.

FICLONERANGE      both files use the same blocks on disk afterwards (XFS, btrfs), for whole blocks only
copy_file_range   a network file system copies on its server; used for files that are on no block device
splice            from page cache to page cache, through a pipe; a large pipe takes less time than the small internal
                  pipe of copy_file_range; used for files on a block device

What the kernel cannot copy, the caller reads and writes.

source    |....######|##########|##########|###.......|      # the range, | the ends of blocks
target    |....######|##########|##########|###
           copied     shared                copied
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from typing import Final

BLOCK_BYTES: Final = 4096
"""Size of the blocks that file systems share between files."""

_PIPE_BYTES: Final = 1 << 20  # the most that Linux gives to any user by default
_CLONE_RANGE: Final = 0x4020940D  # FICLONERANGE
_FILE_CLONE_RANGE: Final = struct.Struct("=qQQQ")
_NOT_OFFERED: Final = frozenset({
    *(errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ETXTBSY)
})  # fmt: skip


def clone_range(source: int, start: int, target: int, position: int, length: int) -> bool:
    """Let a range of a file use the blocks of another file; returns whether the file system does that.

    Args:
        source: Descriptor of the other file.
        start: Start of the range in `source`, a multiple of `BLOCK_BYTES`, as are `position` and `length`.
        target: Descriptor of the file; afterwards its position is the end of the range.
        position: Start of the range in `target`.
        length: Number of bytes.

    Raises:
        OSError: The disk failed, or is full.
    """
    try:
        fcntl.ioctl(target, _CLONE_RANGE, _FILE_CLONE_RANGE.pack(source, start, length, position))
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        return False
    os.lseek(target, position + length, os.SEEK_SET)
    return True


def copy_range(source: int, start: int, end: int, target: int) -> int:
    """Copy a range of a file to the position of another file.

    Args:
        source: Descriptor of the file.
        start: Start of the range.
        end: End of the range.
        target: Descriptor of the other file.

    Returns:
        The first position that was not copied: `end`, or less if the kernel cannot copy between these files.

    Raises:
        OSError: The disk failed, or is full.
    """
    is_on_block_device = os.major(os.fstat(target).st_dev) != 0
    copy_chunks = _splice if is_on_block_device and hasattr(os, "splice") else _copy_file_range
    try:
        for copied in copy_chunks(source, start, end, target):
            start += copied
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
    return start


def _copy_file_range(source: int, start: int, end: int, target: int) -> Iterator[int]:
    """Copy by copy_file_range; yield the bytes of each call, none if the kernel cannot copy."""
    while start < end and hasattr(os, "copy_file_range"):
        copied = os.copy_file_range(source, target, end - start, offset_src=start)
        if not copied:
            return
        start += copied
        yield copied


def _splice(source: int, start: int, end: int, target: int) -> Iterator[int]:
    """Copy through a pipe of `_PIPE_BYTES`; yield the bytes of each transfer."""
    read_end, write_end = os.pipe()
    try:
        with contextlib.suppress(PermissionError):  # the user has many pipes: this one keeps its size
            fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while start < end:
            in_pipe = os.splice(source, write_end, min(end - start, _PIPE_BYTES), offset_src=start)
            if not in_pipe:
                return
            start += in_pipe
            while in_pipe:
                copied = os.splice(read_end, target, in_pipe)
                in_pipe -= copied
                yield copied
    finally:
        os.close(write_end)
        os.close(read_end)
