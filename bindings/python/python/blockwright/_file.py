"""Files as Python's io module has them."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, IO, Any

from . import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._volume import Volume


class RawFile(io.RawIOBase):
    """An unbuffered file of a volume.

    It has a position of its own. Methods may be called from several threads, but the position is shared.
    """

    def __init__(self, volume: Volume, native: _native.File, name: str, mode: str, *, readable: bool, writable: bool, append: bool) -> None:
        super().__init__()
        # Nobody else may hold it, and a volume that is forgotten is closed.
        self._volume: Volume | None = volume
        self._native = native
        self._name = name
        self._mode = mode
        self._readable = readable
        self._writable = writable
        self._append = append
        self._position = 0

    @property
    def name(self) -> str:
        """The path by which the file was opened."""
        return self._name

    @property
    def mode(self) -> str:
        """The mode with which the file was opened."""
        return self._mode

    def _need(self, can: bool, what: str) -> None:
        self._checkClosed()
        if not can:
            raise io.UnsupportedOperation(f"not {what}")

    def _checkClosed(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readable(self) -> bool:
        self._checkClosed()
        return self._readable

    def writable(self) -> bool:
        self._checkClosed()
        return self._writable

    def seekable(self) -> bool:
        self._checkClosed()
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        self._need(self._readable, "readable")
        with memoryview(buffer) as view, view.cast("B") as flat:
            done = self._native.readinto(flat, self._position)
        self._position += done
        return done

    def readall(self) -> bytes:
        self._need(self._readable, "readable")
        rest = self.size() - self._position
        out = bytearray(max(rest, 0))
        filled = 0
        # Another writer may have made the file shorter meanwhile.
        with memoryview(out) as view:
            while filled < len(out):
                done = self._native.readinto(view[filled:], self._position)
                if done == 0:
                    break
                filled += done
                self._position += done
        del out[filled:]
        # ... or longer.
        while more := self.read(io.DEFAULT_BUFFER_SIZE):
            out += more
        return bytes(out)

    def write(self, data: Buffer, /) -> int:
        self._need(self._writable, "writable")
        with memoryview(data) as view, view.cast("B") as flat:
            done = self._native.write(flat, None if self._append else self._position)
        self._position = self.size() if self._append else self._position + done
        return done

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._checkClosed()
        if whence == os.SEEK_SET:
            target = offset
        elif whence == os.SEEK_CUR:
            target = self._position + offset
        elif whence == os.SEEK_END:
            target = self.size() + offset
        elif whence == os.SEEK_DATA:
            target = self._native.seek_data(offset)
        elif whence == os.SEEK_HOLE:
            target = self._native.seek_hole(offset)
        else:
            raise ValueError(f"whence is {whence}")
        if target < 0:
            raise OSError(22, "a position before the file's start")
        self._position = target
        return target

    def tell(self) -> int:
        self._checkClosed()
        return self._position

    def truncate(self, size: int | None = None, /) -> int:
        self._need(self._writable, "writable")
        size = self._position if size is None else size
        self._native.truncate(size)
        return size

    def size(self) -> int:
        """Size in bytes."""
        self._checkClosed()
        return self._native.stat()[0][5]

    def sync(self, *, data_only: bool = False) -> None:
        """Makes the file durable (``fsync``; with ``data_only``, ``fdatasync``). Flush a buffer above it first."""
        self._checkClosed()
        self._native.sync(data_only)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._native.close()
            self._volume = None

    def __repr__(self) -> str:
        state = "closed" if self.closed else self._mode
        return f"<blockwright.RawFile {self._name!r} {state}>"


def open_file(
    volume: Volume,
    path: str,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *,
    permissions: int = 0o644,
) -> IO[Any]:
    """Opens a file as the built-in ``open`` does."""
    letters = set(mode)
    if letters - set("rwxabt+") or len(mode) != len(letters):
        raise ValueError(f"invalid mode: {mode!r}")
    if len(letters & set("rwxa")) != 1:
        raise ValueError("mode must have exactly one of r, w, x, a")
    binary = "b" in letters
    if binary and "t" in letters:
        raise ValueError("can't have text and binary mode at once")
    for name, value in (("encoding", encoding), ("errors", errors), ("newline", newline)):
        if binary and value is not None:
            raise ValueError(f"binary mode doesn't take {name}")
    if buffering == 0 and not binary:
        raise ValueError("can't have unbuffered text I/O")
    update = "+" in letters
    readable = "r" in letters or update
    writable = "r" not in letters or update
    native = volume._native.open(
        path,
        readable,
        writable,
        "a" in letters,
        "w" in letters,
        bool(letters & set("wa")),
        "x" in letters,
        permissions,
    )
    raw = RawFile(volume, native, path, mode, readable=readable, writable=writable, append="a" in letters)
    if "a" in letters:
        raw.seek(0, os.SEEK_END)
    if buffering == 0:
        return raw  # type: ignore[return-value]
    line_buffering = buffering == 1 and not binary
    size = buffering if buffering > 1 else 1 << 17
    buffered: io.BufferedRandom | io.BufferedReader | io.BufferedWriter
    if update:
        buffered = io.BufferedRandom(raw, size)
    elif writable:
        buffered = io.BufferedWriter(raw, size)
    else:
        buffered = io.BufferedReader(raw, size)
    if binary:
        return buffered
    # UTF-8 whatever this machine's locale is: the volume is another machine's.
    text = io.TextIOWrapper(buffered, encoding or "utf-8", errors, newline, line_buffering)
    text.mode = mode  # type: ignore[misc]
    return text
