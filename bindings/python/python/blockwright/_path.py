"""Paths in volumes that feel like pathlib's."""

from __future__ import annotations

import fnmatch
import html
import stat as _stat
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._volume import StatResult, Volume


class Path:
    """A path in a volume, with the methods of ``pathlib.Path``.

    It is not an ``os.PathLike``: ``open(path)`` of a path in a volume would open a file of the host. Paths are absolute in their volume.
    """

    __slots__ = ("_inside", "_volume")

    def __init__(self, volume: Volume, *parts: str | PurePosixPath) -> None:
        self._volume = volume
        self._inside = PurePosixPath("/", *parts)

    def _at(self, inside: PurePosixPath) -> Path:
        return Path(self._volume, inside)

    # Pure parts.

    @property
    def volume(self) -> Volume:
        """The volume."""
        return self._volume

    @property
    def name(self) -> str:
        """The last component."""
        return self._inside.name

    @property
    def stem(self) -> str:
        """The name without its last suffix."""
        return self._inside.stem

    @property
    def suffix(self) -> str:
        """The last suffix, with its dot."""
        return self._inside.suffix

    @property
    def suffixes(self) -> list[str]:
        """All suffixes."""
        return self._inside.suffixes

    @property
    def parts(self) -> tuple[str, ...]:
        """The components."""
        return self._inside.parts

    @property
    def parent(self) -> Path:
        """The directory above."""
        return self._at(self._inside.parent)

    @property
    def parents(self) -> tuple[Path, ...]:
        """All directories above, the nearest first."""
        return tuple(self._at(p) for p in self._inside.parents)

    def joinpath(self, *others: str | PurePosixPath) -> Path:
        """The path with these behind it."""
        return self._at(self._inside.joinpath(*others))

    def __truediv__(self, other: str | PurePosixPath) -> Path:
        return self.joinpath(other)

    def with_name(self, name: str) -> Path:
        """The path with another name."""
        return self._at(self._inside.with_name(name))

    def with_stem(self, stem: str) -> Path:
        """The path with another stem."""
        return self._at(self._inside.with_stem(stem))

    def with_suffix(self, suffix: str) -> Path:
        """The path with another suffix."""
        return self._at(self._inside.with_suffix(suffix))

    def relative_to(self, other: str | PurePosixPath | Path) -> PurePosixPath:
        """The way from another path to this one."""
        return self._inside.relative_to(str(other))

    def is_relative_to(self, other: str | PurePosixPath | Path) -> bool:
        """Whether it is below another path."""
        return self._inside.is_relative_to(str(other))

    def match(self, pattern: str) -> bool:
        """Whether it matches a pattern."""
        return self._inside.match(pattern)

    def as_posix(self) -> str:
        """As text."""
        return str(self._inside)

    def __str__(self) -> str:
        return str(self._inside)

    def __repr__(self) -> str:
        return f"blockwright.Path({self._volume.image!r}, {str(self._inside)!r})"

    def _repr_html_(self) -> str:
        """For notebooks: a directory with what is in it, and other files with their attributes."""
        head = f"<code>{html.escape(str(self))}</code>"
        if not self.exists():
            return f"{head} (missing)"
        if not self.is_dir():
            return f"{head} {html.escape(repr(self.stat()))}"
        rows = ""
        entries = sorted(self.iterdir(), key=str)
        for entry in entries[:100]:
            found = entry.lstat()
            cells = (_stat.filemode(found.st_mode), f"{found.st_uid}:{found.st_gid}", str(found.st_size), entry.name)
            rows += "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"
        more = f"<p>and {len(entries) - 100} more</p>" if len(entries) > 100 else ""
        return f"{head}<table>{rows}</table>{more}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Path):
            return NotImplemented
        return self._volume is other._volume and self._inside == other._inside

    def __lt__(self, other: Path) -> bool:
        if not isinstance(other, Path) or self._volume is not other._volume:
            return NotImplemented
        return self._inside < other._inside

    def __hash__(self) -> int:
        return hash((id(self._volume), self._inside))

    # Questions.

    def stat(self, *, follow_symlinks: bool = True) -> StatResult:
        """Attributes."""
        return self._volume.stat(self, follow_symlinks=follow_symlinks)

    def lstat(self) -> StatResult:
        """Attributes; a symbolic link is not followed."""
        return self.stat(follow_symlinks=False)

    def exists(self) -> bool:
        """Whether there is something."""
        return self._volume.exists(self)

    def _mode(self, follow: bool) -> int:
        try:
            return self.stat(follow_symlinks=follow).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return _stat.S_ISDIR(self._mode(True))

    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return _stat.S_ISREG(self._mode(True))

    def is_symlink(self) -> bool:
        """Whether it is a symbolic link."""
        return _stat.S_ISLNK(self._mode(False))

    def iterdir(self) -> Iterator[Path]:
        """What is in the directory, in the directory's own order."""
        return (self / entry.name for entry in self._volume.scandir(self))

    def walk(self) -> Iterator[tuple[Path, list[str], list[str]]]:
        """As ``pathlib.Path.walk``, from the top down."""
        return ((self._at(PurePosixPath(here)), dirs, files) for here, dirs, files in self._volume.walk(self))

    def glob(self, pattern: str) -> Iterator[Path]:
        """What matches a pattern below this directory. ``**`` stands for any number of directories."""
        parts = PurePosixPath(pattern).parts
        if not parts or parts[0] == "/":
            raise ValueError(f"unacceptable pattern: {pattern!r}")
        seen: set[PurePosixPath] = set()
        for found in self._glob(parts):
            if found._inside not in seen:
                seen.add(found._inside)
                yield found

    def rglob(self, pattern: str) -> Iterator[Path]:
        """As ``glob("**/" + pattern)``."""
        return self.glob(f"**/{pattern}")

    def _glob(self, parts: tuple[str, ...]) -> Iterator[Path]:
        if not parts:
            yield self
            return
        first, rest = parts[0], parts[1:]
        if first == "**":
            yield from self._glob(rest)
            for entry in sorted(self._volume.scandir(self), key=lambda e: e.name) if self.is_dir() else ():
                if entry.is_dir():
                    yield from (self / entry.name)._glob(parts)
        elif any(c in first for c in "*?["):
            if not self.is_dir():
                return
            for entry in sorted(self._volume.scandir(self), key=lambda e: e.name):
                if fnmatch.fnmatchcase(entry.name, first):
                    yield from (self / entry.name)._glob(rest)
        elif (here := self / first)._mode(False):
            yield from here._glob(rest)

    def readlink(self) -> str:
        """The target of the symbolic link."""
        return self._volume.readlink(self)

    # Contents.

    def open(
        self,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        """Opens the file as the built-in ``open`` does."""
        return self._volume.open(self, mode, buffering, encoding, errors, newline)

    def read_bytes(self) -> bytes:
        """All bytes of the file."""
        with self.open("rb", buffering=0) as file:
            data: bytes = file.read()
            return data

    def read_text(self, encoding: str | None = None, errors: str | None = None) -> str:
        """The file as text."""
        with self.open(encoding=encoding, errors=errors) as file:
            text: str = file.read()
            return text

    def write_bytes(self, data: bytes) -> int:
        """Replaces the file's contents."""
        with self.open("wb") as file:
            return file.write(data)

    def write_text(self, text: str, encoding: str | None = None, errors: str | None = None, newline: str | None = None) -> int:
        """Replaces the file's contents with text."""
        with self.open("w", encoding=encoding, errors=errors, newline=newline) as file:
            return file.write(text)

    # Changes.

    def mkdir(self, mode: int = 0o755, parents: bool = False, exist_ok: bool = False) -> None:
        """Makes a directory."""
        try:
            self._volume.mkdir(self, mode)
        except FileExistsError:
            if not (exist_ok and self.is_dir()):
                raise
        except FileNotFoundError:
            if not parents or self.parent == self:
                raise
            self.parent.mkdir(parents=True, exist_ok=True)
            self.mkdir(mode, exist_ok=exist_ok)

    def touch(self, mode: int = 0o644, exist_ok: bool = True) -> None:
        """Makes an empty file, or sets the times of the one that is there to now."""
        import time

        try:
            self._volume.open(self, "xb", permissions=mode).close()
        except FileExistsError:
            if not exist_ok:
                raise
            now = time.time_ns()
            self._volume.utime(self, atime_ns=now, mtime_ns=now)

    def unlink(self, missing_ok: bool = False) -> None:
        """Removes the name."""
        try:
            self._volume.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Removes the empty directory."""
        self._volume.rmdir(self)

    def rmtree(self) -> None:
        """Removes it with all that is in it."""
        self._volume.rmtree(self)

    def rename(self, target: str | PurePosixPath | Path) -> Path:
        """Renames it; what is at the target is replaced. The new path."""
        other = target if isinstance(target, Path) else self._volume.path(str(target))
        if other.volume is not self._volume:
            raise OSError(18, "the paths are in different volumes", str(self), None, str(other))
        self._volume.rename(self, other)
        return other

    def replace(self, target: str | PurePosixPath | Path) -> Path:
        """As :meth:`rename`."""
        return self.rename(target)

    def symlink_to(self, target: str) -> None:
        """Makes it a symbolic link."""
        self._volume.symlink(str(target), self)

    def hardlink_to(self, target: str | PurePosixPath | Path) -> None:
        """Makes it a further name of a file."""
        self._volume.link(target, self)

    def chmod(self, mode: int) -> None:
        """Sets the permission bits."""
        self._volume.chmod(self, mode)
