"""The native half. Use the package's own names; these may change in every version."""

from collections.abc import Callable, Iterator
from typing import Any, Final
from typing_extensions import Buffer

from ._place import Place

__version__: Final[str]

class CorruptError(OSError):
    """The volume's structures contradict the format or themselves."""

class UnsupportedFeatureError(OSError):
    """The image holds no known format, or uses a feature that this package does not have."""

class PoisonedError(OSError):
    """A write of metadata failed earlier; the volume refuses all changes since."""

_Stat = tuple[
    tuple[int, int, int, int, int, int, int, int],
    tuple[int, int, int, int | None],
]

class Listing(Iterator[tuple[str, int, str]]):
    def __iter__(self) -> Listing: ...
    def __next__(self) -> tuple[str, int, str]: ...

class File:
    def readinto(self, view: memoryview, offset: int) -> int: ...
    def write(self, buffer: Buffer, offset: int | None) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self, data_only: bool) -> None: ...
    def stat(self) -> _Stat: ...
    def seek_data(self, offset: int) -> int: ...
    def seek_hole(self, offset: int) -> int: ...
    def close(self) -> None: ...

class Volume:
    def __new__(
        cls,
        place: Place,
        read_only: bool,
        lock: bool,
        cache_bytes: int | None,
    ) -> Volume: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def format(self) -> str: ...
    def sync(self) -> None: ...
    def trim(self) -> int: ...
    def statfs(self) -> tuple[int, int, int, int, int, int, int]: ...
    def stat(self, path: str, follow: bool) -> _Stat: ...
    def open(
        self,
        path: str,
        read: bool,
        write: bool,
        append: bool,
        truncate: bool,
        create: bool,
        exclusive: bool,
        mode: int,
    ) -> File: ...
    def listdir(self, path: str) -> Listing: ...
    def mkdir(self, path: str, mode: int) -> None: ...
    def makedirs(self, path: str) -> None: ...
    def mknod(self, path: str, kind: str, mode: int, rdev: int) -> None: ...
    def symlink(self, target: str, path: str) -> None: ...
    def readlink(self, path: str) -> str: ...
    def link(self, original: str, path: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def rmdir(self, path: str) -> None: ...
    def rmtree(self, path: str) -> None: ...
    def rename(self, from_: str, to: str, mode: str) -> None: ...
    def copy(self, from_: str, to: str) -> int: ...
    def chmod(self, path: str, mode: int) -> None: ...
    def chown(self, path: str, uid: int | None, gid: int | None, follow: bool) -> None: ...
    def utime(self, path: str, atime: int | None, mtime: int | None, follow: bool) -> None: ...
    def getxattr(self, path: str, name: str) -> bytes: ...
    def setxattr(self, path: str, name: str, value: bytes, mode: str) -> None: ...
    def removexattr(self, path: str, name: str) -> None: ...
    def listxattr(self, path: str) -> list[str]: ...

def build(
    path: str,
    sources: list[tuple[str, Any, str | None]],
    rules: dict[str, Any],
    *,
    format: str,
    size: int | None,
    free: int,
    auto: bool,
    label: bytes | None,
    features: str,
    uuid: bytes | None,
    owner: tuple[int, int] | None,
    epoch: int | None,
    block_size: int | None,
    inode_ratio: int | None,
    inode_size: int | None,
    inodes: int | None,
    reserved_percent: float | None,
    hash_seed: bytes | None,
    journal_size: int | None,
    journal: str | None,
    base: str | None,
    platform: str | None,
    keep_image_config: bool,
    allow_backing: bool,
    new: bool,
    progress: Callable[[str, int, int], object] | None,
) -> dict[str, Any]: ...
def journal(
    path: str,
    size: int | None,
    *,
    label: bytes | None,
    uuid: bytes | None,
    epoch: int | None,
    block_size: int | None,
    allow_backing: bool,
    progress: Callable[[str, int, int], object] | None,
) -> bytes: ...
def seal(
    path: str, bytes: int, *, salt: bytes | None, uuid: bytes | None, tree: str | None
) -> tuple[bytes, bytes, int, int, int]: ...
def check(
    place: Place,
    *,
    mode: str,
    issues_max: int | None,
    superblock: int | None,
    discard_fsynced: bool,
    progress: Callable[[str, int, int], object] | None,
) -> dict[str, Any]: ...
def resize(
    place: Place,
    size: int | None,
    *,
    minimum: bool,
    free: int,
    dry_run: bool,
    grow_partition: bool,
    progress: Callable[[str, int, int], object] | None,
) -> tuple[int, int]: ...
def partitions(path: str, allow_backing: bool) -> list[dict[str, Any]]: ...
def map(place: Place, html: bool) -> str: ...
def settings(
    place: Place,
    *,
    label: bytes | None,
    uuid: bytes | None,
    random_uuid: bool,
    hash_seed: bytes | None,
    reserved_bytes: int | None,
    reserved_percent: float | None,
    errors: str | None,
    default_options: str | None,
    features: str | None,
    cold_extensions: str | None,
    hot_extensions: str | None,
    journal_bytes: int | None,
    progress: Callable[[str, int, int], object] | None,
) -> None: ...
