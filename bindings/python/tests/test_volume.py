"""Volumes, names and attributes."""

import errno
import os
import stat
import threading

import blockwright
import pytest


def test_life(image):
    volume = blockwright.Volume(image)
    assert not volume.closed and not volume.read_only and volume.format in ("ext4", "f2fs")
    with pytest.raises(OSError) as busy:
        blockwright.Volume(image)
    assert busy.value.errno == errno.EBUSY
    usage = volume.usage()
    assert 0 < usage.free <= usage.total and usage.used + usage.free <= usage.total + usage.total // 10
    volume.sync()
    volume.close()
    volume.close()
    assert volume.closed
    with pytest.raises(OSError) as stale:
        volume.stat("/")
    assert stale.value.errno == errno.ESTALE


def test_exceptions_are_those_of_the_errno(volume, tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        volume.open("/none")
    assert missing.value.errno == errno.ENOENT and missing.value.filename == "/none"
    volume.mkdir("/d")
    with pytest.raises(FileExistsError):
        volume.mkdir("/d")
    with pytest.raises(IsADirectoryError):
        volume.open("/d", "rb")
    with pytest.raises(IsADirectoryError):
        volume.unlink("/d")
    volume.open("/f", "xb").close()
    with pytest.raises(NotADirectoryError):
        volume.listdir("/f")
    with pytest.raises(OSError) as full:
        volume.mkdir("/" + "x" * 300)
    assert full.value.errno == errno.ENAMETOOLONG
    junk = tmp_path / "junk.img"
    junk.write_bytes(b"junk" * 100_000)
    with pytest.raises(blockwright.UnsupportedFeatureError) as unknown:
        blockwright.Volume(junk)
    assert isinstance(unknown.value, OSError) and unknown.value.filename == str(junk)
    with pytest.raises(TypeError):
        volume.stat(b"/f")


def test_read_only(image):
    with blockwright.Volume(image) as volume:
        volume.path("f").write_text("x")
    before = image.read_bytes()
    with blockwright.Volume(image, read_only=True) as volume, blockwright.Volume(image, read_only=True) as second:
        assert volume.read_only and second.path("f").read_text() == "x"
        with pytest.raises(OSError) as refused:
            volume.mkdir("/d")
        assert refused.value.errno == errno.EROFS
    assert image.read_bytes() == before


def test_names(volume):
    volume.makedirs("/a/b/c")
    volume.makedirs("/a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        volume.makedirs("/a/b")
    volume.symlink("/a/b", "/link")
    assert volume.readlink("/link") == "/a/b"
    volume.open("/a/f", "wb").close()
    volume.link("/a/f", "/a/g")
    assert volume.stat("/a/f").st_nlink == 2
    volume.mknod("/null", "char", 0o666, os.makedev(1, 3))
    assert volume.stat("/null").st_rdev == os.makedev(1, 3)
    with pytest.raises(ValueError):
        volume.mknod("/x", "nothing")
    assert {e.name: e.kind for e in volume.scandir("/a")} == {"b": "directory", "f": "file", "g": "file"}
    with pytest.raises(FileExistsError):
        volume.rename("/a/f", "/null", mode="noreplace")
    volume.rename("/a/f", "/null", mode="exchange")
    assert stat.S_ISCHR(volume.stat("/a/f").st_mode)
    volume.rename("/null", "/a/f")
    assert not volume.exists("/null")
    with pytest.raises(OSError) as entries:
        volume.rmdir("/a")
    assert entries.value.errno == errno.ENOTEMPTY
    assert [here for here, _, _ in volume.walk("/a")] == ["/a", "/a/b", "/a/b/c"]
    volume.rmtree("/a")
    assert "a" not in volume.listdir()


def test_names_that_are_not_utf8(volume):
    name = os.fsdecode(b"caf\xe9")
    volume.path(name).write_text("latin")
    assert name in volume.listdir("/")
    assert volume.path(name).read_text() == "latin"


def test_attributes(volume):
    volume.open("/f", "wb", permissions=0o600).close()
    assert volume.stat("/f").st_mode == 0o100600
    volume.chown("/f", 1000, 70_000)
    volume.chmod("/f", 0o4711)
    volume.utime("/f", atime_ns=-1_500_000_000, mtime_ns=5_000_000_000_123_456_789)
    found = volume.stat("/f")
    assert (found.st_mode, found.st_uid, found.st_gid) == (0o104711, 1000, 70_000)
    assert found.st_atime_ns == -1_500_000_000 and found.st_mtime_ns == 5_000_000_000_123_456_789
    assert found.st_atime == -1.5
    volume.setxattr("/f", "user.note", b"value\0", mode="create")
    with pytest.raises(FileExistsError):
        volume.setxattr("/f", "user.note", b"", mode="create")
    assert volume.getxattr("/f", "user.note") == b"value\0" and volume.listxattr("/f") == ["user.note"]
    volume.removexattr("/f", "user.note")
    with pytest.raises(OSError) as none:
        volume.getxattr("/f", "user.note")
    assert none.value.errno == errno.ENODATA


def test_paths_feel_like_pathlib(volume):
    path = volume / "etc" / "app.tar.gz"
    assert (path.name, path.stem, path.suffix, path.suffixes) == ("app.tar.gz", "app.tar", ".gz", [".tar", ".gz"])
    assert path.parent == volume.path("/etc") and path.parts == ("/", "etc", "app.tar.gz")
    assert str(path.with_suffix(".zst")) == "/etc/app.tar.zst" and str(path.relative_to("/etc")) == "app.tar.gz"
    assert path != volume / "etc" and len({path, volume.path("etc/app.tar.gz")}) == 1
    with pytest.raises(TypeError):
        os.fspath(path)
    with pytest.raises(FileNotFoundError):
        path.parent.joinpath("x").mkdir()
    path.parent.mkdir()
    path.parent.mkdir(exist_ok=True)
    assert path.write_bytes(b"data") == 4 and path.read_bytes() == b"data" and path.is_file() and not path.is_dir()
    (volume / "a" / "b").mkdir(parents=True)
    (volume / "a" / "b" / "x.txt").write_text("é\n")
    assert (volume / "a" / "b" / "x.txt").read_text() == "é\n"
    (volume / "a" / "y.txt").touch()
    with pytest.raises(FileExistsError):
        (volume / "a" / "y.txt").touch(exist_ok=False)
    assert [str(p) for p in volume.root.glob("a/*.txt")] == ["/a/y.txt"]
    assert [str(p) for p in (volume / "a").rglob("*.txt")] == ["/a/y.txt", "/a/b/x.txt"]
    assert [str(p) for p in volume.root.glob("**/b/x.t?t")] == ["/a/b/x.txt"]
    assert sorted(p.name for p in (volume / "a").iterdir()) == ["b", "y.txt"]
    link = volume / "link"
    link.symlink_to("a")
    assert link.is_symlink() and link.is_dir() and link.readlink() == "a"
    moved = (volume / "a" / "y.txt").rename("/moved")
    assert moved.exists() and not (volume / "a" / "y.txt").exists()
    moved.unlink()
    moved.unlink(missing_ok=True)
    (volume / "a").rmtree()
    assert not (volume / "a").exists()


def test_notebooks(volume):
    volume.path("<b>").write_text("x")
    assert volume.format in repr(volume) and "read-write" in repr(volume)
    assert volume.format in volume._repr_html_() and "MiB" in volume._repr_html_()
    listing = volume.root._repr_html_()
    assert "&lt;b&gt;" in listing and "<b>" not in listing
    assert "(missing)" in volume.path("none")._repr_html_()
    volume.close()
    assert "closed" in repr(volume)


def test_threads_share_a_volume(volume):
    failed = []

    def work(n):
        try:
            for k in range(20):
                path = volume / f"{n}-{k}"
                path.write_bytes(bytes([n]) * 10_000)
                assert path.read_bytes() == bytes([n]) * 10_000
        except BaseException as error:  # noqa: BLE001
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(volume.listdir()) >= 120


def test_closing_waits_for_other_threads(image):
    volume = blockwright.Volume(image)
    ended = []
    begun = threading.Event()

    def work():
        try:
            for k in range(1_000_000):
                (volume / f"{k % 30}").write_bytes(b"x" * 1000)
                begun.set()
        except OSError as error:
            ended.append(error.errno)

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    volume.close()
    thread.join()
    assert ended == [errno.ESTALE]
    assert blockwright.check(image).clean
