"""Making, checking and resizing."""

import errno
import io
import os
import tarfile
import threading
import uuid

import blockwright
import pytest


@pytest.fixture
def tree(tmp_path):
    tree = tmp_path / "tree"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc" / "hostname").write_text("box\n")
    (tree / "data").write_bytes(b"d" * 300_000)
    return tree


def tar(**files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    out.seek(0)
    return out


@pytest.mark.parametrize("format", ["ext4", "ext3", "ext2", "f2fs"])
def test_build_image(tmp_path, tree, format):
    image = tmp_path / "x.img"
    steps = []
    report = blockwright.build_image(
        image,
        [tree, tar(over="tar", data="replaced")],
        format=format,
        free=4 << 20,
        label="built",
        owner=(5, 6),
        progress=lambda *step: steps.append((threading.get_ident(), *step)),
    )
    assert report.format == ("f2fs" if format == "f2fs" else "ext4")
    assert report.size == os.stat(image).st_size and report.files == 3 and report.directories == 1
    assert "finishing" in {step for _, step, _, _ in steps}
    assert all(isinstance(done, int) and isinstance(total, int) for _, _, done, total in steps)
    with blockwright.Volume(image, read_only=True) as volume:
        assert volume.path("etc/hostname").read_text() == "box\n"
        assert volume.path("data").read_text() == "replaced" and volume.path("over").read_text() == "tar"
        assert volume.stat("etc/hostname").st_uid == 5
    assert blockwright.check(image).clean


def test_the_same_bytes(tmp_path, tree):
    images = [tmp_path / "1.img", tmp_path / "2.img"]
    for image in images:
        blockwright.build_image(image, tree, epoch=1_700_000_000)
    assert images[0].read_bytes() == images[1].read_bytes()
    chosen = uuid.uuid4()
    assert blockwright.mkfs(images[0], size=8 << 20, uuid=chosen).uuid == chosen


def test_progress_that_fails_comes_out(tmp_path, tree):
    class Stop(Exception):
        pass

    def fail(step, done, total):
        raise Stop(step)

    with pytest.raises(Stop):
        blockwright.build_image(tmp_path / "x.img", tree, progress=fail)
    assert blockwright.check(tmp_path / "x.img").clean


def test_sources_that_fail(tmp_path):
    class Bad:
        def read(self, n):
            raise RuntimeError("no more tape")

    with pytest.raises(OSError, match="no more tape"):
        blockwright.build_image(tmp_path / "x.img", [Bad()])
    assert not (tmp_path / "x.img").exists()
    with pytest.raises(FileNotFoundError):
        blockwright.build_image(tmp_path / "x.img", tmp_path / "none")
    with pytest.raises(ValueError):
        blockwright.mkfs(tmp_path / "x.img", size=1 << 20, format="ntfs")
    with pytest.raises(OSError):
        blockwright.mkfs(tmp_path / "x.img")


def test_an_image_that_is_there(tmp_path, image):
    with pytest.raises(FileExistsError):
        blockwright.mkfs(image, size=8 << 20, exist_ok=False)
    with blockwright.Volume(image):
        with pytest.raises(OSError) as busy:
            blockwright.mkfs(image)
        assert busy.value.errno == errno.EBUSY


def test_check_and_repair(image):
    clean = blockwright.check(image)
    assert clean.clean and clean.exit_code == 0 and clean.issues == [] and "clean" in repr(clean)
    with open(image, "r+b") as f:
        if image.name.startswith("ext4"):
            f.seek(1024 + 12)
            f.write(b"UUUU")
        else:
            f.seek(4096)
            f.write(b"U" * 4096)
    phases = set()
    found = blockwright.check(image, progress=lambda phase, done, total: phases.add(phase))
    assert not found.clean and not found.changed and phases
    issue = found.issues[0]
    assert issue.kind.isidentifier() and issue.outcome == "left" and issue.text and issue.severity in ("note", "minor", "damage", "fatal")
    assert issue.kind in found._repr_html_()
    assert len(blockwright.check(image, issues_max=1).issues) <= 1
    repaired = blockwright.check(image, "repair")
    assert repaired.changed and not repaired.uncorrected and repaired.issues[0].outcome == "repaired"
    assert blockwright.check(image).clean
    with pytest.raises(ValueError):
        blockwright.check(image, "nonsense")


def test_resize(image):
    planned = blockwright.resize(image, 256 << 20, dry_run=True)
    assert os.stat(image).st_size == 64 << 20
    grown = blockwright.resize(image, 256 << 20)
    assert grown == planned and grown.now > grown.before and os.stat(image).st_size == 256 << 20
    small = blockwright.resize(image, minimum=True, free=1 << 20)
    assert small.now < grown.now and os.stat(image).st_size == small.now
    assert blockwright.check(image).clean
    with pytest.raises(ValueError):
        blockwright.resize(image, 1, minimum=True)
    with blockwright.Volume(image):
        with pytest.raises(OSError):
            blockwright.resize(image, 256 << 20)


def test_a_range_of_an_image(tmp_path):
    blockwright.mkfs(tmp_path / "v.img", size=16 << 20)
    disk = tmp_path / "disk.img"
    disk.write_bytes(b"\xff" * (1 << 20) + (tmp_path / "v.img").read_bytes() + b"\xff" * 4096)
    with blockwright.Volume(disk, offset=1 << 20, size=16 << 20) as volume:
        volume.path("x").write_text("in a range")
    assert blockwright.check(disk, offset=1 << 20, size=16 << 20).clean
    assert disk.read_bytes()[: 1 << 20] == b"\xff" * (1 << 20) and disk.read_bytes()[-4096:] == b"\xff" * 4096


def test_a_journal_on_another_device(tmp_path):
    log, image = tmp_path / "log.img", tmp_path / "v.img"
    chosen = uuid.uuid4()
    assert blockwright.make_journal(log, 8 << 20, uuid=chosen, label="log") == chosen
    blockwright.mkfs(image, size=64 << 20, journal=log)
    with pytest.raises(OSError, match="(?i)user|used|busy"):
        blockwright.mkfs(tmp_path / "other.img", size=64 << 20, journal=log)
    with pytest.raises(OSError, match="journal"):
        blockwright.Volume(image)
    with blockwright.Volume(image, journal=log) as volume:
        volume.path("x").write_text("1")
    assert blockwright.check(image, journal=log).clean
    with pytest.raises(OSError, match="journal"):
        blockwright.resize(image, 128 << 20)
    blockwright.resize(image, 128 << 20, journal=log)
    blockwright.change_settings(image, journal=log, features="^has_journal")
    with blockwright.Volume(image) as volume:
        assert volume.path("x").read_text() == "1"
    assert blockwright.check(image).clean


def test_settings(image):
    ext4 = image.name.startswith("ext4")
    blockwright.change_settings(image)
    blockwright.change_settings(image, label="renamed", uuid=uuid.UUID(int=0x1234))
    raw = image.read_bytes()
    assert uuid.UUID(int=0x1234).bytes in raw[:8192]
    assert ("renamed".encode() if ext4 else "renamed".encode("utf-16-le")) in raw[:8192]
    blockwright.change_settings(image, uuid="random")
    assert uuid.UUID(int=0x1234).bytes not in image.read_bytes()[:8192]
    if ext4:
        steps = []
        blockwright.change_settings(
            image,
            features="quota,^metadata_csum",
            reserved_percent=1.5,
            errors="remount-ro",
            default_options="acl",
            journal_size=8 << 20,
            progress=lambda *step: steps.append(step),
        )
        assert {step for step, _, _ in steps} <= {"inodes", "numbers", "data", "metadata", "plan"} and steps
        with pytest.raises(ValueError):
            blockwright.change_settings(image, reserved=1, reserved_percent=1.0)
    with pytest.raises(ValueError):
        blockwright.change_settings(image, errors="ignore")
    with pytest.raises(OSError):
        blockwright.change_settings(image, features="nonsense")
    assert blockwright.check(image).clean


def test_progress_stops_a_resize(image):
    class Stop(Exception):
        pass

    def stop(phase, done, total):
        raise Stop

    blockwright.resize(image, 256 << 20)
    # What is left lies behind the end that the volume will have.
    with blockwright.Volume(image) as volume:
        for n in range(10):
            volume.path(f"gone{n}").write_bytes(b"g" * (2 << 20))
        volume.path("kept").write_bytes(b"k" * 100_000)
        volume.sync()
        for n in range(10):
            volume.path(f"gone{n}").unlink()
    with pytest.raises(Stop):
        blockwright.resize(image, minimum=True, progress=stop)
    assert blockwright.check(image).clean
    phases = set()
    blockwright.resize(image, minimum=True, progress=lambda phase, done, total: phases.add(phase))
    assert phases <= {"inodes", "numbers", "data", "metadata", "plan"} and phases
    with blockwright.Volume(image, read_only=True) as volume:
        assert volume.path("kept").read_bytes() == b"k" * 100_000


def test_an_overlay_takes_the_changes(tmp_path, image):
    before = image.read_bytes()
    overlay = tmp_path / "changes"
    with blockwright.Volume(image, overlay=overlay) as volume:
        volume.path("x").write_text("1")
    assert blockwright.check(image, overlay=overlay).files == blockwright.check(image).files + 1
    blockwright.change_settings(image, overlay=overlay, label="forked")
    assert image.read_bytes() == before


def test_options_of_check(image):
    if image.name.startswith("ext4"):
        with open(image, "r+b") as f:
            f.seek(1024)
            f.write(bytes(1024))
        # Of the blocks of 1024 bytes, 8193 has a copy.
        with pytest.raises(OSError, match="32768"):
            blockwright.check(image, superblock=32768)
        with pytest.raises(OSError, match="f2fs"):
            blockwright.check(image, "repair", discard_fsynced=True)
    else:
        assert blockwright.check(image, "repair", discard_fsynced=True).clean
        with pytest.raises(OSError):
            blockwright.check(image, discard_fsynced=True)
        with pytest.raises(OSError, match="ext4"):
            blockwright.check(image, superblock=32768)
        with pytest.raises(OSError):
            blockwright.check(image, devices=[image.with_name("none")])


def test_a_copy_of_the_superblock(tmp_path):
    image = tmp_path / "v.img"
    blockwright.mkfs(image, size=64 << 20, block_size=1024, inodes=4096, inode_size=256, reserved_percent=0, journal_size=2 << 20)
    report = blockwright.check(image, superblock=8193)
    assert report.clean and report.inodes == 4096
    assert report.transactions_replayed == 0 and report.blocks_written == 0
