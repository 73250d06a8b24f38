"""Volumes for fsspec: ``blockwright://disk.img!/path``. pandas, pyarrow, dask and others open files in images with it.

Needs the package fsspec.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat as _stat
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from fsspec.spec import AbstractFileSystem

from ._volume import StatResult, Volume

_KINDS = {_stat.S_IFDIR: "directory", _stat.S_IFREG: "file", _stat.S_IFLNK: "link"}


#: The volumes that instances have opened: fsspec makes an instance for each set of options, also when they name one image.
_volumes: WeakValueDictionary[tuple[str, bool], Volume] = WeakValueDictionary()
_volumes_lock = Lock()


def _shared(image: str, read_only: bool) -> Volume:
    key = (os.path.abspath(image), read_only)
    with _volumes_lock:
        volume = _volumes.get(key)
        if volume is None or volume.closed:
            volume = _volumes[key] = Volume(image, read_only=read_only)
        return volume


class BlockwrightFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of one volume.

    ``image`` names what is opened (see :class:`blockwright.Volume`); in URLs it is what is in front of ``!``. Volumes are opened for reading unless
    ``read_only=False`` is given, since writing excludes all other users of the image. Instances with equal ``image`` and
    ``read_only`` share the volume. ``auto_mkdir`` makes the
    directories that are missing above a file that is written. Nothing that is written is durable before :meth:`sync` or
    :meth:`close`, or the end of the interpreter.
    """

    protocol = "blockwright"
    #: fsspec would hand out an instance whose volume was closed. The volumes themselves are shared.
    cachable = False
    root_marker = "/"

    def __init__(self, image: str | None = None, *, volume: Volume | None = None, read_only: bool = True, auto_mkdir: bool = False, **options: Any) -> None:
        super().__init__(image=image, volume=volume, read_only=read_only, auto_mkdir=auto_mkdir, **options)
        self.auto_mkdir = auto_mkdir
        if volume is None:
            if image is None:
                raise ValueError("an image is needed: blockwright://IMAGE!/path, or image=...")
            volume = _shared(image, read_only)
            self._own = True
        else:
            self._own = False
        self.volume = volume

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(p) for p in path]
        path = os.fspath(path)
        if path.startswith("blockwright://"):
            path = path[len("blockwright://") :].partition("!")[2]
        path = posixpath.normpath("/" + path).replace("//", "/")
        return path or "/"

    def unstrip_protocol(self, name: str) -> str:
        if name.startswith("blockwright://"):
            return name
        return f"blockwright://{self.volume.image}!{self._strip_protocol(name)}"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        if not path.startswith("blockwright://"):
            return {}
        image, mark, _ = path[len("blockwright://") :].partition("!")
        return {"image": image} if mark else {}

    # Questions.

    def _info(self, path: str, found: StatResult) -> dict[str, Any]:
        info = {
            "name": path,
            "size": found.st_size,
            "type": _KINDS.get(_stat.S_IFMT(found.st_mode), "other"),
            "mode": found.st_mode,
            "uid": found.st_uid,
            "gid": found.st_gid,
            "ino": found.st_ino,
            "nlink": found.st_nlink,
            "mtime": found.st_mtime,
            "created": found.st_birthtime_ns / 1e9 if found.st_birthtime_ns is not None else found.st_ctime,
            "islink": _stat.S_ISLNK(found.st_mode),
        }
        if info["type"] == "directory":
            info["size"] = 0
        if info["islink"]:
            info["destination"] = self.volume.readlink(path)
            try:
                target = self.volume.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                return info
            info["size"] = target.st_size
            info["type"] = _KINDS.get(_stat.S_IFMT(target.st_mode), "other")
        return info

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(path, self.volume.stat(path, follow_symlinks=False))

    def ls(self, path: str, detail: bool = False, **kwargs: Any) -> list[Any]:
        path = self._strip_protocol(path)
        here = self.info(path)
        if here["type"] != "directory":
            return [here] if detail else [path]
        entries = sorted(self.volume.scandir(path), key=lambda e: e.name)
        if not detail:
            return [entry.path for entry in entries]
        return [self._info(entry.path, entry.stat()) for entry in entries]

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self.volume.exists(self._strip_protocol(path))

    def isdir(self, path: str) -> bool:
        return self.volume.path(self._strip_protocol(path)).is_dir()

    def isfile(self, path: str) -> bool:
        return self.volume.path(self._strip_protocol(path)).is_file()

    def created(self, path: str) -> Any:
        import datetime

        return datetime.datetime.fromtimestamp(self.info(path)["created"], tz=datetime.timezone.utc)

    def modified(self, path: str) -> Any:
        import datetime

        found = self.volume.stat(self._strip_protocol(path))
        return datetime.datetime.fromtimestamp(found.st_mtime, tz=datetime.timezone.utc)

    # Contents.

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **kwargs: Any) -> Any:
        path = self._strip_protocol(path)
        if "b" not in mode:
            mode += "b"
        if self.auto_mkdir and mode[0] in "wxa":
            self.makedirs(posixpath.dirname(path), exist_ok=True)
        return self.volume.open(path, mode)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        if self.auto_mkdir:
            self.makedirs(posixpath.dirname(path2), exist_ok=True)
        self.volume.copy(path1, path2)

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, **kwargs: Any) -> None:
        rpath = self._strip_protocol(rpath)
        if self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        if hasattr(lpath, "write"):
            with self.volume.open(rpath, "rb") as source:
                shutil.copyfileobj(source, lpath, 1 << 20)
            return
        parent = os.path.dirname(os.fspath(lpath))
        if parent:
            os.makedirs(parent, exist_ok=True)
        with self.volume.open(rpath, "rb") as source, open(lpath, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)

    # Changes.

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if self.exists(path):
            raise FileExistsError(17, os.strerror(17), path)
        if create_parents:
            self.makedirs(path, exist_ok=True)
        else:
            self.volume.mkdir(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.volume.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path: str) -> None:
        self.volume.rmdir(self._strip_protocol(path))

    def _rm(self, path: str) -> None:
        self.volume.unlink(self._strip_protocol(path))

    def rm_file(self, path: str) -> None:
        self._rm(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            one = self._strip_protocol(one)
            if maxdepth is not None:
                super().rm(one, recursive=recursive, maxdepth=maxdepth)
            elif not _stat.S_ISDIR(self.volume.stat(one, follow_symlinks=False).st_mode):
                self.volume.unlink(one)
            elif recursive:
                self.volume.rmtree(one)
            else:
                self.volume.rmdir(one)

    def mv(self, path1: str, path2: str, recursive: bool = True, maxdepth: int | None = None, **kwargs: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path2):
            path2 = posixpath.join(path2, posixpath.basename(path1))
        self.volume.rename(path1, path2)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> None:
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            with self._open(path, "wb"):
                pass
        else:
            self.volume.path(path).touch()

    def chmod(self, path: str, mode: int) -> None:
        """Sets the permission bits."""
        self.volume.chmod(self._strip_protocol(path), mode)

    def sync(self) -> None:
        """Makes everything durable that was written."""
        self.volume.sync()

    def close(self) -> None:
        """Closes the volume, unless it was given from outside. No instance on it is used again."""
        if self._own:
            self.volume.close()
