"""Making, checking and resizing."""

import errno
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import tarfile
import threading
import time
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
    assert not (tmp_path / "x.img").exists()


@pytest.mark.parametrize("format", ["ext4", "f2fs"])
def test_progress_that_fails_at_the_last_steps(tmp_path, tree, format):
    class Stop(Exception):
        pass

    def at_the_end(step, done, total):
        if step == "copying" and 0 < total == done:
            raise Stop

    def too_late(step, done, total):
        if step == "finishing":
            raise Stop

    with pytest.raises(Stop):
        blockwright.build_image(tmp_path / "x.img", tree, format=format, progress=at_the_end)
    assert not (tmp_path / "x.img").exists()
    with pytest.raises(Stop):
        blockwright.build_image(tmp_path / "x.img", tree, format=format, progress=too_late)
    assert blockwright.check(tmp_path / "x.img").clean


def damage(image):
    """Damages the image, and returns the bytes that are there now."""
    at, count = (1024 + 12, 4) if image.name.startswith("ext4") else (4096, 4096)
    with open(image, "r+b") as f:
        f.seek(at)
        f.write(b"U" * count)
    return image.read_bytes()


def test_progress_stops_a_check(image):
    class Stop(Exception):
        pass

    calls = []

    def fail(phase, done, total):
        calls.append(phase)
        raise Stop

    damaged = damage(image)
    with pytest.raises(Stop):
        blockwright.check(image, "repair", progress=fail)
    assert len(calls) == 1 and image.read_bytes() == damaged
    assert blockwright.check(image, "repair").changed


def test_a_signal_stops_a_check(image):
    told = threading.Event()

    def interrupted(number, frame):
        told.set()
        raise KeyboardInterrupt

    def interrupt(phase, done, total):
        signal.raise_signal(signal.SIGINT)
        # The main thread takes it while the check waits for this function.
        assert told.wait(60)
        time.sleep(0.2)

    damaged = damage(image)
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            blockwright.check(image, "repair", progress=interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert image.read_bytes() == damaged


def test_a_check_on_another_thread(image):
    found = []
    thread = threading.Thread(target=lambda: found.append(blockwright.check(image)))
    thread.start()
    thread.join()
    assert found[0].clean


def test_streams_are_read_by_the_caller(tmp_path):
    class Tape(io.BytesIO):
        threads = set()

        def read(self, n=-1):
            self.threads.add(threading.get_ident())
            return super().read(n)

    blockwright.build_image(tmp_path / "x.img", [Tape(tar(one="1").read()), Tape(tar(two="2").read())])
    assert Tape.threads == {threading.get_ident()}
    with blockwright.Volume(tmp_path / "x.img", read_only=True) as volume:
        assert volume.path("one").read_text() + volume.path("two").read_text() == "12"

    class Stopped:
        def read(self, n):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blockwright.build_image(tmp_path / "y.img", [Stopped()])
    assert not (tmp_path / "y.img").exists()


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


def test_rules(tmp_path, tree):
    image = tmp_path / "x.img"
    (tree / "core.o").write_text("o")
    contexts, config = tmp_path / "file_contexts", tmp_path / "fs_config"
    contexts.write_text("/system/etc(/.*)? u:object_r:etc:s0\n")
    config.write_text("system/etc/hostname 1 2 600\n")
    report = blockwright.build_image(
        image,
        tree,
        free=4 << 20,
        exclude=["*.o", "/nothing/*"],
        fsverity="data",
        owner_map="0-65534:100000",
        mtime=1234567,
        file_contexts=contexts,
        fs_config=config,
        mount_point="/system",
    )
    assert report.files == 2
    with blockwright.Volume(image, read_only=True) as volume:
        assert not volume.path("core.o").exists()
        stat = volume.stat("etc/hostname")
        assert (stat.st_mode & 0o777, stat.st_uid, stat.st_gid, stat.st_mtime) == (0o600, 1, 2, 1234567)
        assert volume.stat("data").st_uid == 100_000 + os.getuid()
        assert volume.getxattr("etc/hostname", "security.selinux").rstrip(b"\0") == b"u:object_r:etc:s0"
    blockwright.build_image(image, tree, mtime_max=5, exclude="core.*")
    with blockwright.Volume(image, read_only=True) as volume:
        assert volume.stat("data").st_mtime == 5
    for wrong in ({"exclude": "["}, {"owner_map": "x"}, {"file_contexts": tmp_path / "none"}, {"platform": "x"}, {"base": tmp_path / "none"}):
        with pytest.raises(OSError):
            blockwright.build_image(tmp_path / "y.img", tree, **wrong)
    with pytest.raises(ValueError):
        blockwright.build_image(image, tree, mtime=1, mtime_max=1)
    assert not (tmp_path / "y.img").exists()


def docker_archive(layer, name):
    """What docker save writes of an image of one layer."""
    config = json.dumps({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]}}).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member, data in [("manifest.json", manifest), ("config.json", config), ("layer.tar", layer)]:
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def test_images_and_listings(tmp_path):
    layer = gzip.decompress(tar(hello="from an image").read())
    saved = docker_archive(layer, "box:1")
    (tmp_path / "saved.tar").write_bytes(saved)
    (tmp_path / "objects").mkdir()
    (tmp_path / "objects" / "x").write_text("object")
    listing = "/ 0 40755 2 0 0 0 0.0 - - -\n/inline 5 100644 1 7 8 0 5.0 - hello -\n"
    (tmp_path / "listing").write_text(listing + "/object 6 100644 1 0 0 0 5.0 x - -\n")
    for image, dump in [
        (f"docker-archive:{tmp_path}/saved.tar:box:1", blockwright.Dumpfile(tmp_path / "listing", tmp_path / "objects")),
        (io.BytesIO(saved), blockwright.Dumpfile(io.BytesIO(listing.encode()))),
    ]:
        out = tmp_path / "x.img"
        blockwright.build_image(out, [blockwright.ContainerImage(image), dump], free=4 << 20, keep_image_config=True)
        with blockwright.Volume(out, read_only=True) as volume:
            assert volume.path("hello").read_text() == "from an image" and volume.path("inline").read_text() == "hello"
            assert volume.stat("inline").st_uid == 7
            assert "rootfs" in volume.path(".blockwright/config.json").read_text()
            if dump.objects:
                assert volume.path("object").read_text() == "object"
    blockwright.build_image(out, blockwright.ContainerImage(io.BytesIO(saved), "box:1"))
    with pytest.raises(OSError, match="other"):
        blockwright.build_image(out, blockwright.ContainerImage(io.BytesIO(saved), "other:1"))
    with pytest.raises(ValueError, match="docker-archive"):
        blockwright.build_image(out, blockwright.ContainerImage("saved.tar"))
    with pytest.raises(ValueError, match="name"):
        blockwright.build_image(out, blockwright.ContainerImage(f"docker-archive:{tmp_path}/saved.tar", "box:1"))


def test_an_earlier_build(tmp_path, tree):
    old, new = tmp_path / "old.img", tmp_path / "new.img"
    blockwright.build_image(old, tree, size=32 << 20)
    (tree / "a-new-one").write_text("first in order")
    blockwright.build_image(new, tree, size=32 << 20, base=old)
    inodes = []
    for image in (old, new):
        with blockwright.Volume(image, read_only=True) as volume:
            inodes.append(volume.stat("data").st_ino)
    assert inodes[0] == inodes[1]


def test_verity(tmp_path, tree):
    image, tree_file = tmp_path / "x.img", tmp_path / "hashes"
    report = blockwright.build_image(image, tree)
    apart = blockwright.seal_verity(image, report.size, uuid=report.uuid, tree=tree_file)
    assert apart.hash_offset == 0 and tree_file.stat().st_size == apart.tree_bytes and len(apart.salt) == 32
    behind = blockwright.seal_verity(image, report.size, uuid=report.uuid)
    assert behind.root_hash == apart.root_hash and len(behind.root_hash) == 32
    assert behind.hash_offset == report.size and image.stat().st_size == report.size + behind.tree_bytes
    assert behind.data_blocks == report.size // 4096
    assert blockwright.seal_verity(image, report.size, salt=b"salt").root_hash != behind.root_hash
    with pytest.raises(OSError):
        blockwright.seal_verity(image, 100)


def test_a_seal_harms_nothing(tmp_path, tree):
    image, other, tree_file = tmp_path / "x.img", tmp_path / "other.img", tmp_path / "hashes"
    report = blockwright.build_image(image, tree)
    blockwright.mkfs(other, size=8 << 20)
    before, before_other = image.read_bytes(), other.read_bytes()
    for size, options in [
        (4 * report.size, {}),
        (8192, {}),
        (report.size, {"tree": image}),
        (report.size, {"tree": other}),
    ]:
        with pytest.raises(OSError) as refused:
            blockwright.seal_verity(image, size, **options)
        assert refused.value.errno == errno.EINVAL
    with blockwright.Volume(image) as volume:
        for options in ({}, {"tree": tree_file}):
            with pytest.raises(OSError) as refused:
                blockwright.seal_verity(image, report.size, **options)
            assert refused.value.errno == errno.EBUSY
        assert volume.path("etc/hostname").read_text() == "box\n"
    assert other.read_bytes() == before_other and not tree_file.exists()
    assert image.stat().st_size == len(before) and blockwright.check(image).clean
    # A file in the format of qcow2.
    container = tmp_path / "x.qcow2"
    container.write_bytes(b"QFI\xfb" + bytes(65532))
    with pytest.raises(OSError) as refused:
        blockwright.seal_verity(container, 65536)
    assert refused.value.errno == errno.EOPNOTSUPP and len(container.read_bytes()) == 65536
    # What lies behind a volume is kept, unless it is an earlier tree.
    blockwright.seal_verity(image, report.size)
    with open(image, "ab") as f:
        f.write(b"precious")
    before = image.read_bytes()
    with pytest.raises(OSError):
        blockwright.seal_verity(image, report.size)
    assert image.read_bytes() == before


def test_a_signal_stops_a_seal(tmp_path):
    image = tmp_path / "x.img"
    with open(image, "wb") as f:
        f.truncate(1 << 38)

    def interrupted(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            blockwright.seal_verity(image, 1 << 38)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    # So much takes longer to hash. No tree is left.
    assert image.stat().st_size == 1 << 38


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


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
def test_a_plan_refuses_what_the_resize_refuses(tmp_path):
    image = tmp_path / "v.img"
    blockwright.mkfs(image, size=16 << 20)
    for container in ("vmdk", "qcow2"):
        disk = tmp_path / f"disk.{container}"
        subprocess.run(["qemu-img", "convert", "-O", container, image, disk], check=True)
        if container == "qcow2":
            assert blockwright.resize(disk, minimum=True, dry_run=True).now < 16 << 20
            continue
        for dry_run in (True, False):
            with pytest.raises(OSError):
                blockwright.resize(disk, minimum=True, dry_run=dry_run)


def test_a_range_of_an_image(tmp_path):
    blockwright.mkfs(tmp_path / "v.img", size=16 << 20)
    disk = tmp_path / "disk.img"
    disk.write_bytes(b"\xff" * (1 << 20) + (tmp_path / "v.img").read_bytes() + b"\xff" * 4096)
    with blockwright.Volume(disk, offset=1 << 20, size=16 << 20) as volume:
        volume.path("x").write_text("in a range")
    assert blockwright.check(disk, offset=1 << 20, size=16 << 20).clean
    assert disk.read_bytes()[: 1 << 20] == b"\xff" * (1 << 20) and disk.read_bytes()[-4096:] == b"\xff" * 4096


def _mbr(entries):
    """A table of partitions: (start, size) in bytes."""
    table = bytearray(512)
    for index, (start, size) in enumerate(entries):
        at = 446 + 16 * index
        table[at + 4] = 0x83
        table[at + 8 : at + 16] = (start >> 9).to_bytes(4, "little") + (size >> 9).to_bytes(4, "little")
    table[510:] = b"\x55\xaa"
    return bytes(table)


def test_a_partition_is_a_volume_and_grows_with_it(tmp_path):
    blockwright.mkfs(tmp_path / "v.img", size=16 << 20, label="data")
    assert blockwright.partitions(tmp_path / "v.img") == []
    disk = tmp_path / "disk.img"
    contents = (tmp_path / "v.img").read_bytes()
    with open(disk, "wb") as file:
        file.write(_mbr([(1 << 20, 16 << 20), (128 << 20, 16 << 20)]))
        file.seek(1 << 20)
        file.write(contents)
        file.truncate(144 << 20)
    first, second = blockwright.partitions(disk)
    assert (first.number, first.start, first.size) == (1, 1 << 20, 16 << 20)
    assert (first.type, first.format, first.label, first.uuid) == ("0x83", "ext4", "data", None)
    assert (second.number, second.format, second.problem) == (2, None, None)
    part = f"{disk}:p1"
    with blockwright.Volume(part) as volume:
        volume.path("x").write_text("1")
    for image, arguments in [(disk, {}), (part, {"minimum": True}), (part, {"size": 1 << 30})]:
        with pytest.raises(OSError):
            blockwright.resize(image, grow_partition=True, **arguments)

    def stops(phase, done, total):
        raise LookupError

    with pytest.raises(LookupError):
        blockwright.resize(part, grow_partition=True, progress=stops)
    planned = blockwright.resize(part, grow_partition=True, dry_run=True)
    assert blockwright.partitions(disk)[0] == first
    grown = blockwright.resize(part, grow_partition=True)
    assert grown == planned and 100 << 20 < grown.now == blockwright.partitions(disk)[0].size
    with blockwright.Volume(part) as volume:
        assert volume.path("x").read_text() == "1"
    assert blockwright.check(part).clean


def test_a_map_is_drawn(tmp_path):
    image = tmp_path / "v.img"
    blockwright.mkfs(image, size=64 << 20, format="f2fs")
    assert blockwright.draw_map(image).startswith("<svg")
    assert "<html" in blockwright.draw_map(image, html=True)
    (tmp_path / "no.img").write_bytes(b"x" * 65536)
    with pytest.raises(OSError):
        blockwright.draw_map(tmp_path / "no.img")


def test_a_journal_is_stopped(tmp_path):
    log = tmp_path / "log.img"
    steps = []

    def stops(step, done, total):
        steps.append((step, done, total))
        raise LookupError

    with pytest.raises(LookupError):
        blockwright.make_journal(log, 64 << 20, progress=stops)
    assert len(steps) == 1 and steps[0][0] == "copying" and steps[0][2] > 0
    assert not log.exists()


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


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="needs qemu-img")
def test_data_outside_of_the_images_folder_is_used_when_that_is_allowed(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    disk, log, base = folder / "disk.qcow2", folder / "log.qcow2", folder / "base.qcow2"
    for image in (disk, log, base):
        data = f"data_file={tmp_path / image.stem}.raw"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", "-o", data, image, "32M"], check=True)
    calls = {
        "make_journal": lambda **more: blockwright.make_journal(log, **more),
        "mkfs": lambda **more: blockwright.mkfs(base, **more),
        "build": lambda **more: blockwright.build_image(disk, [folder], size=32 << 20, base=base, exclude="*", **more),
        "with a journal": lambda **more: blockwright.mkfs(disk, journal=log, **more),
        "open": lambda **more: blockwright.Volume(disk, journal=log, **more).close(),
        "check": lambda **more: blockwright.check(disk, journal=log, **more),
        "settings": lambda **more: blockwright.change_settings(disk, journal=log, label="x", **more),
        "resize": lambda **more: blockwright.resize(disk, minimum=True, journal=log, **more),
        "map": lambda **more: blockwright.draw_map(disk, journal=log, **more),
        "partitions": lambda **more: blockwright.partitions(disk, **more),
    }
    for name, call in calls.items():
        with pytest.raises(OSError, match="allow_backing"):
            call()
            pytest.fail(name)
        call(allow_backing=True)
    with blockwright.Volume(disk, journal=log, overlay=folder / "changes", allow_backing=True) as volume:
        volume.path("x").write_text("1")


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
