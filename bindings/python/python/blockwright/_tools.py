"""What works on volumes that are not open: make, check, resize, change settings."""

from __future__ import annotations

import html
import os
import uuid as _uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO, Any, Literal

from . import _native
from ._place import place

#: Called with a step, how much of it is done, and how much there is (0 when that is not known).
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What a volume that was made is like."""

    format: str
    #: Bytes.
    size: int
    block_size: int
    blocks: int
    free_blocks: int
    inodes: int
    free_inodes: int
    #: From the sources, directories not counted.
    files: int
    directories: int
    uuid: _uuid.UUID


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """A container image as a source of :func:`build_image`: its layers in order.

    ``oci:DIR[:TAG]``, ``oci-archive:FILE[:TAG]``, ``docker-archive:FILE[:NAME]``, or an open stream of ``docker save``. ``name`` is the image's, where such a
    stream has several; with a path it is refused.
    """

    image: str | IO[bytes]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Dumpfile:
    """A listing of composefs as a source of :func:`build_image`, a path or an open stream.

    Data that is not in it is below ``objects``. Without that it is below the listing's folder, and the data of a stream is in the stream.
    """

    listing: str | os.PathLike[str] | IO[bytes]
    objects: str | os.PathLike[str] | None = None


Source = str | os.PathLike[str] | IO[bytes] | ContainerImage | Dumpfile


@dataclass(frozen=True, slots=True)
class Verity:
    """A tree of hashes (dm-verity): what ``veritysetup open`` and the kernel's command line need."""

    #: The one thing that must come from elsewhere than the image.
    root_hash: bytes
    salt: bytes
    #: Blocks of 4096 bytes that are covered.
    data_blocks: int
    #: Where the tree begins in its file, in bytes.
    hash_offset: int
    #: Bytes of the tree.
    tree_bytes: int


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding of a check."""

    #: A stable name.
    kind: str
    severity: Literal["note", "minor", "damage", "fatal"]
    outcome: Literal["left", "repaired", "unrepairable"]
    #: For people.
    text: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition of a disk, and what it holds. Text that is not known is ``None``, or empty."""

    #: From 1, as in the path ``disk.img:p2``. Logical partitions of an MBR begin at 5.
    number: int
    #: Its first byte on the disk.
    start: int
    #: Bytes.
    size: int
    #: Of a GPT, as in the path ``disk.img:p=root``.
    name: str
    #: Of a GPT.
    uuid: _uuid.UUID | None
    #: A GUID, or a byte as ``0x83``.
    type: str
    type_name: str | None
    #: What it holds, as blkid names it: ``ext4`` (also ext2 and ext3), ``f2fs``, ``fat32`` and so on.
    format: str | None
    label: str
    #: Why it cannot be used.
    problem: str | None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check."""

    issues: list[Issue]
    #: Issues beyond those listed.
    suppressed: int
    #: Nothing worse than notes was found.
    clean: bool
    #: Something worse than a note is still there.
    uncorrected: bool
    #: Something was written to the image.
    changed: bool
    #: As fsck programs have it: 0, 1 or 4.
    exit_code: int
    inodes: int
    inodes_used: int
    blocks: int
    blocks_used: int
    directories: int
    files: int
    symlinks: int
    specials: int
    names: int
    #: Transactions of the journal that were replayed: in memory, where nothing may be changed.
    transactions_replayed: int
    blocks_written: int

    def __repr__(self) -> str:
        state = "clean" if self.clean else f"{len(self.issues) + self.suppressed} issues"
        return f"<blockwright.CheckReport {state}, {self.files} files, {self.directories} directories>"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = "".join(
            f"<tr><td>{i.severity}</td><td>{i.outcome}</td><td>{html.escape(i.kind)}</td><td>{html.escape(i.text)}</td></tr>"
            for i in self.issues[:200]
        )
        return f"<p>{html.escape(repr(self))}</p>" + (f"<table>{rows}</table>" if rows else "")


@dataclass(frozen=True, slots=True)
class Resized:
    """What a change of size came to, in bytes."""

    before: int
    now: int


def _owner(owner: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if owner is None else (int(owner[0]), int(owner[1]))


def _source(source: Source) -> tuple[str, Any, str | None]:
    if isinstance(source, ContainerImage):
        return ("image", source.image, source.name)
    if isinstance(source, Dumpfile):
        return ("dumpfile", source.listing, None if source.objects is None else os.fspath(source.objects))
    return ("files", source, None)


def _texts(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts)


def _path(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


def build_image(
    image: str | os.PathLike[str],
    sources: Source | Iterable[Source],
    *,
    format: Literal["ext4", "ext3", "ext2", "f2fs"] = "ext4",
    size: int | None = None,
    free: int = 0,
    label: str | bytes | None = None,
    features: str = "",
    uuid: _uuid.UUID | None = None,
    owner: tuple[int, int] | None = None,
    epoch: int | None = None,
    block_size: int | None = None,
    inode_ratio: int | None = None,
    inode_size: int | None = None,
    inodes: int | None = None,
    reserved_percent: float | None = None,
    hash_seed: _uuid.UUID | None = None,
    journal_size: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    base: str | os.PathLike[str] | None = None,
    platform: str | None = None,
    keep_image_config: bool = False,
    allow_backing: bool = False,
    exclude: str | Iterable[str] = (),
    fsverity: str | Iterable[str] = (),
    owner_map: str | Iterable[str] = (),
    mtime: int | None = None,
    mtime_max: int | None = None,
    file_contexts: str | os.PathLike[str] | None = None,
    fs_config: str | os.PathLike[str] | None = None,
    mount_point: str | None = None,
    exist_ok: bool = True,
    progress: Progress | None = None,
) -> BuildReport:
    """Makes a volume from directories, tar files, open tar streams, container images and listings; later sources lie over earlier ones.

    Tar files and streams may be compressed with gzip, zstd or xz.

    Without ``size`` the volume is as small as the sources allow, with ``free`` bytes free. ``owner`` is given to everything from directories.
    With ``epoch`` (as ``SOURCE_DATE_EPOCH``), the same sources and options make the same bytes.
    ``journal`` is the device or image of the volume's journal, which :func:`make_journal` has made and no volume uses.
    ``base`` is the image of an earlier build of an ext4 volume: what is in both stays where it was. ``platform`` (as ``linux/arm64``) chooses among the images
    of a container image, whose configuration ``keep_image_config`` puts into the volume. ``allow_backing`` is that of :class:`Volume`: of the image, ``journal`` and ``base``.

    The other options are rules for the entries of all sources, as those of the command ``mkfs``: ``exclude`` has patterns of names or paths that are left
    out, ``fsverity`` of files that fs-verity protects; ``owner_map`` maps users and groups (``"0-65535:100000"``); ``mtime`` is the time of all files in
    seconds since 1970, and ``mtime_max`` that of files that are younger; ``file_contexts`` has SELinux labels, ``fs_config`` Android's owners and modes, and
    ``mount_point`` stands before the paths that these two are asked about.

    ``progress`` is called from threads of the library, with a step (``reading``, ``copying``, ``finishing``). If it raises an exception, it is not
    called again, the build stops, and the exception comes out: a new image is removed, and one that was there is no volume any more, unless
    the step was ``reading``. So does ``KeyboardInterrupt``. While metadata is written (``finishing``) it is too late: the exception comes out when the image is
    complete, and the image stays. Streams are read by the caller's thread.
    """
    if isinstance(sources, (str, os.PathLike, ContainerImage, Dumpfile)) or hasattr(sources, "read"):
        sources = [sources]  # type: ignore[list-item]
    if size is not None and free:
        raise ValueError("free is for volumes without a size")
    if mtime is not None and mtime_max is not None:
        raise ValueError("mtime is of all files, and mtime_max of those that are younger")
    rules = {
        "exclude": _texts(exclude),
        "fsverity": _texts(fsverity),
        "owner_map": _texts(owner_map),
        "mtime": mtime,
        "mtime_max": mtime_max,
        "file_contexts": _path(file_contexts),
        "fs_config": _path(fs_config),
        "mount_point": None if mount_point is None else os.fsencode(mount_point),
    }
    return _build(
        image,
        [_source(source) for source in sources],
        rules,
        size=size,
        free=free,
        auto=size is None,
        label=label,
        uuid=uuid,
        owner=owner,
        exist_ok=exist_ok,
        progress=progress,
        format=format,
        features=features,
        epoch=epoch,
        block_size=block_size,
        inode_ratio=inode_ratio,
        inode_size=inode_size,
        inodes=inodes,
        reserved_percent=reserved_percent,
        hash_seed=hash_seed,
        journal_size=journal_size,
        journal=journal,
        base=base,
        platform=platform,
        keep_image_config=keep_image_config,
        allow_backing=allow_backing,
    )


def mkfs(
    image: str | os.PathLike[str],
    size: int | None = None,
    *,
    format: Literal["ext4", "ext3", "ext2", "f2fs"] = "ext4",
    label: str | bytes | None = None,
    features: str = "",
    uuid: _uuid.UUID | None = None,
    owner: tuple[int, int] | None = None,
    epoch: int | None = None,
    block_size: int | None = None,
    inode_ratio: int | None = None,
    inode_size: int | None = None,
    inodes: int | None = None,
    reserved_percent: float | None = None,
    hash_seed: _uuid.UUID | None = None,
    journal_size: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    allow_backing: bool = False,
    exist_ok: bool = True,
) -> BuildReport:
    """Makes an empty volume. Without ``size`` it takes the image or device that is there. ``owner`` is given to the root directory.

    ``journal`` is the device or image of the volume's journal, which :func:`make_journal` has made and no volume uses. ``allow_backing`` is that of
    :class:`Volume`, of the image and the journal.
    """
    return _build(
        image,
        [],
        _NO_RULES,
        size=size,
        label=label,
        uuid=uuid,
        owner=owner,
        exist_ok=exist_ok,
        format=format,
        features=features,
        epoch=epoch,
        block_size=block_size,
        inode_ratio=inode_ratio,
        inode_size=inode_size,
        inodes=inodes,
        reserved_percent=reserved_percent,
        hash_seed=hash_seed,
        journal_size=journal_size,
        journal=journal,
        allow_backing=allow_backing,
    )


_NO_RULES: dict[str, Any] = {
    "exclude": [],
    "fsverity": [],
    "owner_map": [],
    "mtime": None,
    "mtime_max": None,
    "file_contexts": None,
    "fs_config": None,
    "mount_point": None,
}


def _build(
    image: str | os.PathLike[str],
    sources: list[Any],
    rules: dict[str, Any],
    *,
    size: int | None,
    label: str | bytes | None,
    uuid: _uuid.UUID | None,
    owner: tuple[int, int] | None,
    hash_seed: _uuid.UUID | None,
    journal: str | os.PathLike[str] | None,
    exist_ok: bool,
    free: int = 0,
    auto: bool = False,
    base: str | os.PathLike[str] | None = None,
    platform: str | None = None,
    keep_image_config: bool = False,
    allow_backing: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> BuildReport:
    report = _native.build(
        os.fspath(image),
        sources,
        rules,
        size=size,
        free=free,
        auto=auto,
        label=label.encode() if isinstance(label, str) else label,
        uuid=None if uuid is None else uuid.bytes,
        owner=_owner(owner),
        hash_seed=None if hash_seed is None else hash_seed.bytes,
        journal=_path(journal),
        base=_path(base),
        platform=platform,
        keep_image_config=keep_image_config,
        allow_backing=allow_backing,
        new=not exist_ok,
        progress=progress,
        **options,
    )
    report["uuid"] = _uuid.UUID(bytes=bytes(report["uuid"]))
    return BuildReport(**report)


def make_journal(
    image: str | os.PathLike[str],
    size: int | None = None,
    *,
    label: str | bytes | None = None,
    uuid: _uuid.UUID | None = None,
    epoch: int | None = None,
    block_size: int | None = None,
    allow_backing: bool = False,
    progress: Progress | None = None,
) -> _uuid.UUID:
    """Makes a journal for an ext4 volume on another device, in an image or on a device, and returns its UUID.

    Without ``size`` it takes the image or device that is there. ``progress(step, done, total)`` is told ``"copying"`` while the log is wiped. An exception of it, or
    ``KeyboardInterrupt``, stops the call, and removes a new image. ``allow_backing`` is that of :class:`Volume`.
    """
    made = _native.journal(
        os.fspath(image),
        size,
        label=label.encode() if isinstance(label, str) else label,
        uuid=None if uuid is None else uuid.bytes,
        epoch=epoch,
        block_size=block_size,
        allow_backing=allow_backing,
        progress=progress,
    )
    return _uuid.UUID(bytes=bytes(made))


def seal_verity(
    image: str | os.PathLike[str],
    size: int,
    *,
    salt: bytes | None = None,
    uuid: _uuid.UUID | None = None,
    tree: str | os.PathLike[str] | None = None,
) -> Verity:
    """Makes a tree of hashes (dm-verity) over the first ``size`` bytes of an image or block device: ``size`` of :class:`BuildReport`.

    The image must not be in use; with ``tree``, it may be open for reading. It must be a plain one, have at least ``size`` bytes, and no volume that is
    larger. The tree lies behind the volume, where an image file may have zeroes or an earlier tree only, or in the file ``tree``, which is replaced unless it holds a
    volume or a disk. What a block device has behind the volume is overwritten. ``KeyboardInterrupt`` stops it, and leaves no tree. Without ``salt``, one of 32 bytes follows from ``uuid``, which is the tree's; that of the volume is a
    good choice. A volume that is written to afterwards no longer matches its tree.
    """
    made = _native.seal(os.fspath(image), size, salt=salt, uuid=None if uuid is None else uuid.bytes, tree=_path(tree))
    return Verity(bytes(made[0]), bytes(made[1]), *made[2:])


def check(
    image: str | os.PathLike[str],
    mode: Literal["read-only", "preen", "repair"] = "read-only",
    *,
    issues_max: int | None = None,
    offset: int = 0,
    size: int | None = None,
    superblock: int | None = None,
    discard_fsynced: bool = False,
    journal: str | os.PathLike[str] | None = None,
    overlay: str | os.PathLike[str] | None = None,
    devices: Iterable[str | os.PathLike[str]] = (),
    allow_backing: bool = False,
    progress: Progress | None = None,
) -> CheckReport:
    """Checks the volume in an image, which must not be open. Damage is no exception: it is in the report.

    ``preen`` makes the repairs that are safe without a human, ``repair`` all. ``offset``, ``size``, ``journal``, ``overlay``, ``devices``
    and ``allow_backing`` are those of :class:`Volume`.

    ext4: ``superblock`` is the block of a copy to use instead of the primary superblock. f2fs: with ``repair``, ``discard_fsynced`` gives up what fsync
    wrote since the last checkpoint, where a mount refuses to recover it.

    ``progress`` is called from threads of the library, with a phase (``volume``, ``inodes``, ``directories``, ``links``, ``bitmaps``). If it raises an
    exception, the check stops, and the exception comes out. So does ``KeyboardInterrupt``, with or without such a function. A repair
    that has begun to write is completed: the function may still be called, and an exception comes out when the repair is complete. A check that was stopped before
    has written nothing, but the transactions of an ext4 journal that it replayed.
    """
    report = _native.check(
        place(
            image,
            offset=offset,
            size=size,
            journal=journal,
            overlay=overlay,
            devices=devices,
            allow_backing=allow_backing,
        ),
        mode=mode,
        issues_max=issues_max,
        superblock=superblock,
        discard_fsynced=discard_fsynced,
        progress=progress,
    )
    report["issues"] = [Issue(*issue) for issue in report["issues"]]
    return CheckReport(**report)


def resize(
    image: str | os.PathLike[str],
    size: int | None = None,
    *,
    minimum: bool = False,
    free: int = 0,
    dry_run: bool = False,
    grow_partition: bool = False,
    journal: str | os.PathLike[str] | None = None,
    overlay: str | os.PathLike[str] | None = None,
    allow_backing: bool = False,
    progress: Progress | None = None,
) -> Resized:
    """Changes the size of the volume in an image, which must not be open, and the length of the image file with it.

    Without ``size`` the volume takes all of the image; with ``minimum`` it becomes as small as its files allow, with ``free`` bytes free.
    With ``grow_partition`` the image is a partition (``disk.img:p2``). It becomes larger first, into the free room behind it, and without ``size`` takes all of that room.
    ``progress`` is called with a phase (``inodes``, ``numbers``, ``data``, ``metadata``, ``plan``). If it raises an exception, the change stops between two
    steps, with a whole volume, and the exception comes out; the same call continues.
    """
    if size is not None and minimum:
        raise ValueError("minimum takes no size")
    if free and not minimum:
        raise ValueError("free is for minimum")
    where = place(image, journal=journal, overlay=overlay, allow_backing=allow_backing)
    done = _native.resize(
        where, size, minimum=minimum, free=free, dry_run=dry_run, grow_partition=grow_partition, progress=progress
    )
    return Resized(*done)


def partitions(image: str | os.PathLike[str], *, allow_backing: bool = False) -> list[Partition]:
    """The partitions of the disk in an image, on a block device or behind an NBD server, by number. A disk without a table of partitions has none.

    ``Volume(f"{image}:p{partition.number}")`` opens one that holds a volume. ``allow_backing`` is that of
    :class:`Volume`.
    """
    found = _native.partitions(os.fspath(image), allow_backing)
    for one in found:
        one["uuid"] = None if one["uuid"] is None else _uuid.UUID(one["uuid"])
    return [Partition(**one) for one in found]


def draw_map(
    image: str | os.PathLike[str],
    *,
    html: bool = False,
    offset: int = 0,
    size: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    overlay: str | os.PathLike[str] | None = None,
    devices: Iterable[str | os.PathLike[str]] = (),
    allow_backing: bool = False,
) -> str:
    """Draws what each block of the volume in an image holds: a picture (SVG), or with ``html`` a page of its own, to zoom in.

    Damage is drawn; it is no exception. ``offset``, ``size``, ``journal``, ``overlay``, ``devices`` and ``allow_backing`` are
    those of :class:`Volume`.
    """
    where = place(
        image,
        offset=offset,
        size=size,
        journal=journal,
        overlay=overlay,
        devices=devices,
        allow_backing=allow_backing,
    )
    return _native.map(where, html)


def change_settings(
    image: str | os.PathLike[str],
    *,
    label: str | bytes | None = None,
    uuid: _uuid.UUID | Literal["random"] | None = None,
    hash_seed: _uuid.UUID | None = None,
    reserved: int | None = None,
    reserved_percent: float | None = None,
    errors: Literal["continue", "remount-ro", "panic"] | None = None,
    default_options: str | None = None,
    features: str | None = None,
    cold_extensions: str | None = None,
    hot_extensions: str | None = None,
    journal_size: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    overlay: str | os.PathLike[str] | None = None,
    allow_backing: bool = False,
    progress: Progress | None = None,
) -> None:
    """Changes settings of the volume in an image, which must not be open. ``None`` leaves a setting as it is.

    ``reserved`` is bytes for the super user, and ``reserved_percent`` hundredths of the volume. ``features`` and ``default_options`` are changes, such as
    ``"fast_commit,^quota"``. ``cold_extensions`` and ``hot_extensions`` change the lists of f2fs, such as ``"log,^jpg"``. ``journal`` is the device of the volume's journal when it is not on the volume; with the feature ``has_journal`` it is attached.
    What is not possible is refused before anything is written. ``progress`` is that of :func:`resize`.
    """
    if reserved is not None and reserved_percent is not None:
        raise ValueError("reserved and reserved_percent are one setting")
    _native.settings(
        place(image, journal=journal, overlay=overlay, allow_backing=allow_backing),
        label=label.encode() if isinstance(label, str) else label,
        uuid=uuid.bytes if isinstance(uuid, _uuid.UUID) else None,
        random_uuid=uuid == "random",
        hash_seed=None if hash_seed is None else hash_seed.bytes,
        reserved_bytes=reserved,
        reserved_percent=reserved_percent,
        errors=errors,
        default_options=default_options,
        features=features,
        cold_extensions=cold_extensions,
        hot_extensions=hot_extensions,
        journal_bytes=journal_size,
        progress=progress,
    )
