"""fsspec: its own abstract suite, and the ways in by URL."""

import blockwright
import fsspec
import pytest
from blockwright.fsspec import BlockwrightFileSystem
from fsspec.tests.abstract import (
    AbstractCopyTests,
    AbstractFixtures,
    AbstractGetTests,
    AbstractOpenTests,
    AbstractPipeTests,
    AbstractPutTests,
)


class Fixtures(AbstractFixtures):
    @pytest.fixture(scope="class", params=["ext4", "f2fs"])
    def fs(self, request, tmp_path_factory):
        image = tmp_path_factory.mktemp("fsspec") / "x.img"
        blockwright.mkfs(image, size=64 << 20, format=request.param)
        fs = BlockwrightFileSystem(str(image), read_only=False, auto_mkdir=True)
        yield fs
        fs.close()
        assert blockwright.check(image).clean

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_path(self):
        return ""


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass


def test_urls(image):
    url = f"blockwright://{image}!/data/t.csv"
    with fsspec.open(url, "w", read_only=False, auto_mkdir=True) as f:
        f.write("a,b\n1,2\n")
    fs, path = fsspec.url_to_fs(url, read_only=False, auto_mkdir=True)
    assert path == "/data/t.csv" and fs.unstrip_protocol(path) == url
    assert fs.cat(path) == b"a,b\n1,2\n" and fs.ls("/data", detail=False) == ["/data/t.csv"]
    assert fs.info(path)["size"] == 8 and fs.glob("/**/*.csv") == ["/data/t.csv"]
    fs.close()
    with fsspec.open(url) as f:
        assert f.read() == b"a,b\n1,2\n"
    fs, _ = fsspec.url_to_fs(url)
    with pytest.raises(OSError):
        fs.pipe("/x", b"y")
    fs.close()


def test_a_closed_volume_is_opened_again(image):
    for n in range(3):
        fs = fsspec.filesystem("blockwright", image=str(image), read_only=False)
        fs.pipe("/n", str(n).encode())
        again = fsspec.filesystem("blockwright", image=str(image), read_only=False)
        assert again.volume is fs.volume and again.cat("/n") == str(n).encode()
        (fs if n % 2 else again).close()
    for _ in range(2):
        with blockwright.Volume(image, read_only=True) as volume:
            assert BlockwrightFileSystem(volume=volume).cat("/n") == b"2"


def test_files_are_changed(volume):
    fs = BlockwrightFileSystem(volume=volume, read_only=False)
    fs.pipe("/a/b", b"1") if fs.exists("/a") else fs.mkdir("/a")
    fs.pipe("/a/b", b"1")
    fs.mv("/a/b", "/a/c")
    fs.touch("/a/d")
    assert sorted(fs.ls("/a", detail=False)) == ["/a/c", "/a/d"] and fs.modified("/a/c").year >= 2024
    with pytest.raises(FileExistsError):
        fs.mkdir("/a")
    with pytest.raises(OSError):
        fs.rmdir("/a")
    volume.symlink("/a/c", "/link")
    assert fs.info("/link")["type"] == "file" and fs.info("/link")["destination"] == "/a/c" and fs.cat("/link") == b"1"
    fs.rm("/a", recursive=True)
    assert not fs.exists("/a")
    with pytest.raises(FileNotFoundError):
        fs.cat("/a/c")


def test_pandas(image):
    pandas = pytest.importorskip("pandas")
    url = f"blockwright://{image}!/t.csv"
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", "é"]})
    frame.to_csv(url, index=False, storage_options={"read_only": False})
    fsspec.filesystem("blockwright", image=str(image), read_only=False).close()
    assert pandas.read_csv(url).equals(frame)
    fsspec.filesystem("blockwright", image=str(image)).close()
