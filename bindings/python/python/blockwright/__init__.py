"""ext4 and f2fs file systems in images and on block devices: open, make, change and check them, without root and without a mount.

>>> import blockwright
>>> blockwright.mkfs("disk.img", size=32 << 20)      # doctest: +SKIP
>>> with blockwright.Volume("disk.img") as volume:   # doctest: +SKIP
...     (volume / "hello.txt").write_text("hello")
"""

from ._native import CorruptError, PoisonedError, UnsupportedFeatureError, __version__
from ._file import RawFile
from ._path import Path
from ._tools import (
    BuildReport,
    CheckReport,
    ContainerImage,
    Dumpfile,
    Issue,
    Partition,
    Resized,
    Verity,
    build_image,
    change_settings,
    check,
    draw_map,
    make_journal,
    mkfs,
    partitions,
    resize,
    seal_verity,
)
from ._volume import DirEntry, StatResult, Usage, Volume

__all__ = [
    "BuildReport",
    "CheckReport",
    "ContainerImage",
    "CorruptError",
    "DirEntry",
    "Dumpfile",
    "Issue",
    "Partition",
    "Path",
    "PoisonedError",
    "RawFile",
    "Resized",
    "StatResult",
    "UnsupportedFeatureError",
    "Usage",
    "Verity",
    "Volume",
    "__version__",
    "build_image",
    "change_settings",
    "check",
    "draw_map",
    "make_journal",
    "mkfs",
    "partitions",
    "resize",
    "seal_verity",
]
