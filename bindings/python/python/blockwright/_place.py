"""Where a volume is, and what belongs to it beside its image."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypedDict


class Place(TypedDict):
    """What the native half takes."""

    image: str
    offset: int
    size: int | None
    journal: str | None
    overlay: str | None
    devices: list[str]
    allow_backing: bool


def place(
    image: str | os.PathLike[str],
    *,
    offset: int = 0,
    size: int | None = None,
    journal: str | os.PathLike[str] | None = None,
    overlay: str | os.PathLike[str] | None = None,
    devices: Iterable[str | os.PathLike[str]] = (),
    allow_backing: bool = False,
) -> Place:
    """The arguments that say it."""
    return {
        "image": os.fspath(image),
        "offset": offset,
        "size": size,
        "journal": None if journal is None else os.fspath(journal),
        "overlay": None if overlay is None else os.fspath(overlay),
        "devices": [os.fspath(device) for device in devices],
        "allow_backing": allow_backing,
    }
