"""Volumes."""

from __future__ import annotations

import atexit
import html
import os
import stat as _stat
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from types import TracebackType
from typing import IO, Any, Literal

from . import _native
from ._file import open_file
from ._place import place


@dataclass(frozen=True, slots=True)
class StatResult:
    """Attributes, with the names of ``os.stat_result``. Times are nanoseconds since 1970."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    #: Space taken, in units of 512 bytes.
    st_blocks: int
    st_rdev: int
    st_atime_ns: int
    st_mtime_ns: int
    st_ctime_ns: int
    #: Birth, where the inode has room for it.
    st_birthtime_ns: int | None

    @property
    def st_atime(self) -> float:
        """Last access, in seconds."""
        return self.st_atime_ns / 1e9

    @property
    def st_mtime(self) -> float:
        """Last change of the contents, in seconds."""
        return self.st_mtime_ns / 1e9

    @property
    def st_ctime(self) -> float:
        """Last change of the inode, in seconds."""
        return self.st_ctime_ns / 1e9

    def __repr__(self) -> str:
        return f"<{_stat.filemode(self.st_mode)} {self.st_uid}:{self.st_gid} {self.st_size} bytes, inode {self.st_ino}>"


def _result(native: _native._Stat) -> StatResult:
    return StatResult(*native[0], *native[1])


@dataclass(frozen=True, slots=True)
class DirEntry:
    """An entry of a directory."""

    name: str
    #: From the volume's root.
    path: str
    inode: int
    kind: Literal["file", "directory", "symlink", "char", "block", "fifo", "socket", "unknown"]
    _volume: Volume = field(repr=False, compare=False)

    def is_dir(self) -> bool:
        """Whether it is a directory. Symbolic links are not followed."""
        return self.kind == "directory"

    def is_file(self) -> bool:
        """Whether it is a regular file. Symbolic links are not followed."""
        return self.kind == "file"

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return self.kind == "symlink"

    def stat(self) -> StatResult:
        """Attributes. Symbolic links are not followed."""
        return self._volume.stat(self.path, follow_symlinks=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a volume is, in bytes and inodes."""

    total: int
    used: int
    #: Free for users other than root.
    free: int
    inodes: int
    inodes_free: int


#: Volumes that are open. The interpreter's end closes them, since it does not collect everything.
_open: weakref.WeakSet[Volume] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    failed: Exception | None = None
    for volume in list(_open):
        try:
            volume.close()
        except Exception as e:
            failed = failed or e
    if failed is not None:
        raise failed


def _text(path: object) -> str:
    """A path in the volume as text."""
    if isinstance(path, str):
        return path
    if isinstance(path, PurePosixPath):
        return str(path)
    inside = getattr(path, "_inside", None)
    if isinstance(inside, PurePosixPath):
        return str(inside)
    raise TypeError(f"a path in a volume is a str, a PurePosixPath or a blockwright.Path, not {type(path).__name__}")


class Volume:
    """An open volume.

    ``image`` is an image file or block device, a partition of either (``disk.img:p2``, ``disk.img:p=root``), or an NBD export.
    ``journal`` is the device or image of an ext4 journal that is not on the volume. ``overlay`` is a file that keeps all changes, so that the image is
    only read; for writing it is made when it is not there. ``devices`` are the others of an f2fs volume on several, in the order of its superblock.
    ``allow_backing`` opens backing files and external data files of qcow2 images anywhere, and external data files for writing. Without it only regular
    files in the image's folder are opened, and only for reading: the image names them, and the program does not.
    Nothing is durable before :meth:`sync` or :meth:`close` has returned, or the ``with`` block has ended. Volumes that are still
    open when the interpreter ends are closed then. All methods release the interpreter, and may be called from several threads.
    """

    def __init__(
        self,
        image: str | os.PathLike[str],
        *,
        read_only: bool = False,
        lock: bool = True,
        offset: int = 0,
        size: int | None = None,
        cache_bytes: int | None = None,
        journal: str | os.PathLike[str] | None = None,
        overlay: str | os.PathLike[str] | None = None,
        devices: Iterable[str | os.PathLike[str]] = (),
        allow_backing: bool = False,
    ) -> None:
        self._image = os.fspath(image)
        where = place(
            image,
            offset=offset,
            size=size,
            journal=journal,
            overlay=overlay,
            devices=devices,
            allow_backing=allow_backing,
        )
        self._native = _native.Volume(where, read_only, lock, cache_bytes)
        _open.add(self)

    # The volume as a whole.

    @property
    def image(self) -> str:
        """What the volume was opened from."""
        return self._image

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._native.closed

    @property
    def read_only(self) -> bool:
        """Whether changes are refused."""
        return self._native.read_only

    @property
    def format(self) -> str:
        """``ext4`` (also for ext2 and ext3) or ``f2fs``."""
        return self._native.format

    @property
    def root(self) -> Path:
        """The root directory."""
        return self.path("/")

    def path(self, *parts: str) -> Path:
        """A path in this volume."""
        return Path(self, *parts)

    def __truediv__(self, name: str | PurePosixPath) -> Path:
        return self.path("/") / name

    def usage(self) -> Usage:
        """How full the volume is."""
        block, blocks, free, available, inodes, inodes_free, _ = self._native.statfs()
        return Usage(blocks * block, (blocks - free) * block, available * block, inodes, inodes_free)

    def sync(self) -> None:
        """Makes everything durable that was done before."""
        self._native.sync()

    def trim(self) -> int:
        """Gives all free blocks back to the host. How many bytes that were."""
        return self._native.trim()

    def close(self) -> None:
        """Writes everything and closes the volume. A second time does nothing. Open files fail from then on."""
        _open.discard(self)
        self._native.close()

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # Files and directories.

    def open(
        self,
        path: str | PurePosixPath | Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        *,
        permissions: int = 0o644,
    ) -> IO[Any]:
        """Opens a file as the built-in ``open`` does. Text is UTF-8 unless ``encoding`` says otherwise."""
        return open_file(self, _text(path), mode, buffering, encoding, errors, newline, permissions=permissions)

    def scandir(self, path: str | PurePosixPath | Path = "/") -> Iterator[DirEntry]:
        """The entries of a directory, in the directory's own order."""
        text = _text(path)
        listing = self._native.listdir(text)
        above = PurePosixPath("/") / text

        def entries() -> Iterator[DirEntry]:
            for name, inode, kind in listing:
                yield DirEntry(name, str(above / name), inode, kind, self)  # type: ignore[arg-type]

        return entries()

    def listdir(self, path: str | PurePosixPath | Path = "/") -> list[str]:
        """The names in a directory."""
        return [name for name, _, _ in self._native.listdir(_text(path))]

    def walk(self, top: str | PurePosixPath | Path = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """Directories with the names of the directories and of the other files in them, as ``os.walk``, from the top down."""
        waiting = [_text(top)]
        while waiting:
            here = waiting.pop()
            dirs: list[str] = []
            files: list[str] = []
            for entry in self.scandir(here):
                (dirs if entry.is_dir() else files).append(entry.name)
            dirs.sort()
            files.sort()
            yield here, dirs, files
            waiting.extend(str(PurePosixPath(here) / name) for name in reversed(dirs))

    def stat(self, path: str | PurePosixPath | Path, *, follow_symlinks: bool = True) -> StatResult:
        """Attributes."""
        return _result(self._native.stat(_text(path), follow_symlinks))

    def exists(self, path: str | PurePosixPath | Path) -> bool:
        """Whether there is something at the path. Symbolic links are followed."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def mkdir(self, path: str | PurePosixPath | Path, mode: int = 0o755) -> None:
        """Makes a directory."""
        self._native.mkdir(_text(path), mode)

    def makedirs(self, path: str | PurePosixPath | Path, *, exist_ok: bool = False) -> None:
        """Makes a directory and those that are missing above it."""
        text = _text(path)
        if not exist_ok and self.exists(text):
            raise FileExistsError(17, os.strerror(17), text)
        self._native.makedirs(text)

    def mknod(self, path: str | PurePosixPath | Path, kind: str, mode: int = 0o644, device: int = 0) -> None:
        """Makes a file of a kind (see :class:`DirEntry`); ``device`` as ``os.makedev`` makes it."""
        self._native.mknod(_text(path), kind, mode, device)

    def symlink(self, target: str, path: str | PurePosixPath | Path) -> None:
        """Makes a symbolic link at ``path``."""
        self._native.symlink(target, _text(path))

    def readlink(self, path: str | PurePosixPath | Path) -> str:
        """The target of a symbolic link."""
        return self._native.readlink(_text(path))

    def link(self, original: str | PurePosixPath | Path, path: str | PurePosixPath | Path) -> None:
        """Gives a file one more name."""
        self._native.link(_text(original), _text(path))

    def unlink(self, path: str | PurePosixPath | Path) -> None:
        """Removes a name of anything but a directory."""
        self._native.unlink(_text(path))

    def rmdir(self, path: str | PurePosixPath | Path) -> None:
        """Removes an empty directory."""
        self._native.rmdir(_text(path))

    def rmtree(self, path: str | PurePosixPath | Path) -> None:
        """Removes what is at a path, a directory with all that is in it."""
        self._native.rmtree(_text(path))

    def rename(
        self,
        source: str | PurePosixPath | Path,
        target: str | PurePosixPath | Path,
        *,
        mode: Literal["replace", "noreplace", "exchange"] = "replace",
    ) -> None:
        """Renames. By default what is at the target is replaced."""
        self._native.rename(_text(source), _text(target), mode)

    def copy(self, source: str | PurePosixPath | Path, target: str | PurePosixPath | Path) -> int:
        """Copies a file within the volume, holes as holes, with its permission bits. How many bytes."""
        return self._native.copy(_text(source), _text(target))

    # Attributes.

    def chmod(self, path: str | PurePosixPath | Path, mode: int) -> None:
        """Sets the permission bits."""
        self._native.chmod(_text(path), mode)

    def chown(
        self,
        path: str | PurePosixPath | Path,
        uid: int | None = None,
        gid: int | None = None,
        *,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets owner and group; ``None`` leaves one as it is."""
        self._native.chown(_text(path), uid, gid, follow_symlinks)

    def utime(
        self,
        path: str | PurePosixPath | Path,
        *,
        atime_ns: int | None = None,
        mtime_ns: int | None = None,
        follow_symlinks: bool = True,
    ) -> None:
        """Sets times, in nanoseconds since 1970; ``None`` leaves one as it is."""
        self._native.utime(_text(path), atime_ns, mtime_ns, follow_symlinks)

    def getxattr(self, path: str | PurePosixPath | Path, name: str) -> bytes:
        """The value of an extended attribute, for example ``user.note``. Symbolic links are not followed."""
        return self._native.getxattr(_text(path), name)

    def setxattr(
        self,
        path: str | PurePosixPath | Path,
        name: str,
        value: bytes,
        *,
        mode: Literal["any", "create", "replace"] = "any",
    ) -> None:
        """Sets an extended attribute."""
        self._native.setxattr(_text(path), name, value, mode)

    def removexattr(self, path: str | PurePosixPath | Path, name: str) -> None:
        """Removes an extended attribute."""
        self._native.removexattr(_text(path), name)

    def listxattr(self, path: str | PurePosixPath | Path) -> list[str]:
        """The names of all extended attributes."""
        return self._native.listxattr(_text(path))

    # How it looks.

    def __repr__(self) -> str:
        if self.closed:
            return f"<blockwright.Volume {self._image!r} closed>"
        how = "read-only" if self.read_only else "read-write"
        return f"<blockwright.Volume {self._image!r} {self.format}, {how}>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        if self.closed:
            return html.escape(repr(self))
        usage = self.usage()
        percent = 100 * usage.used / usage.total if usage.total else 0.0
        rows = [
            ("image", self._image),
            ("format", self.format),
            ("mode", "read-only" if self.read_only else "read-write"),
            ("size", f"{usage.total / 2**20:.1f} MiB"),
            ("used", f"{usage.used / 2**20:.1f} MiB ({percent:.1f} %)"),
            ("inodes", f"{usage.inodes - usage.inodes_free} of {usage.inodes}"),
        ]
        cells = "".join(f"<tr><th>{name}</th><td>{html.escape(value)}</td></tr>" for name, value in rows)
        return f"<table>{cells}</table>"


from ._path import Path  # noqa: E402  (each needs the other)
