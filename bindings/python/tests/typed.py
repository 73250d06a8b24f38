"""Not run: mypy looks at how the package's types come out for a user of it."""

from __future__ import annotations

from typing import assert_type

import blockwright


def use(image: str) -> None:
    report = blockwright.build_image(image, ["tree"], size=1 << 20, progress=lambda step, done, total: None)
    assert_type(report.files, int)
    with blockwright.Volume(image) as volume:
        assert_type(volume, blockwright.Volume)
        path = volume / "etc" / "hostname"
        assert_type(path, blockwright.Path)
        assert_type(path.read_text(), str)
        assert_type(path.stat().st_birthtime_ns, int | None)
        for entry in volume.scandir("/"):
            assert_type(entry.name, str)
    assert_type(blockwright.check(image, "preen").issues, list[blockwright.Issue])
    assert_type(blockwright.partitions(image), list[blockwright.Partition])
    assert_type(blockwright.draw_map(image, html=True), str)
    volume.stat(3)  # type: ignore[arg-type]
    blockwright.mkfs(image, format="ntfs")  # type: ignore[arg-type]
