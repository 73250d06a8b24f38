"""Files are real files of Python's io module."""

import csv
import errno
import gc
import io
import os
import subprocess
import sys
import zipfile

import blockwright
import pytest


def test_kinds_of_files(volume):
    raw = volume.open("/f", "wb", buffering=0)
    assert isinstance(raw, io.RawIOBase) and isinstance(raw, blockwright.RawFile)
    assert raw.writable() and not raw.readable() and raw.seekable() and raw.name == "/f" and raw.mode == "wb"
    assert raw.write(b"hello") == 5
    with pytest.raises(io.UnsupportedOperation):
        raw.read(1)
    raw.close()
    raw.close()
    assert raw.closed
    for use in (raw.tell, raw.size, raw.readable, lambda: raw.write(b"x")):
        with pytest.raises(ValueError):
            use()
    assert isinstance(volume.open("/f", "rb"), io.BufferedReader)
    assert isinstance(volume.open("/f", "ab"), io.BufferedWriter)
    assert isinstance(volume.open("/f", "r+b"), io.BufferedRandom)
    text = volume.open("/f")
    assert isinstance(text, io.TextIOWrapper) and text.mode == "r" and text.read() == "hello"
    with pytest.raises(io.UnsupportedOperation):
        text.fileno()


@pytest.mark.parametrize("mode", ["", "rw", "q", "rr", "rbt", "b", "+"])
def test_modes_that_cannot_be(volume, mode):
    with pytest.raises(ValueError):
        volume.open("/f", mode)
    assert not volume.exists("/f")


def test_other_arguments_that_cannot_be(volume):
    with pytest.raises(ValueError):
        volume.open("/f", "wb", encoding="utf-8")
    with pytest.raises(ValueError):
        volume.open("/f", "w", buffering=0)


def test_positions(volume):
    with volume.open("/f", "w+b", buffering=0) as f:
        f.write(b"0123456789")
        assert f.tell() == 10 and f.seek(2) == 2 and f.read(3) == b"234" and f.seek(-1, os.SEEK_END) == 9
        assert f.read(5) == b"9" and f.read(5) == b"" and f.readall() == b""
        assert f.seek(-4, os.SEEK_CUR) == 6
        with pytest.raises(OSError):
            f.seek(-1)
        assert f.tell() == 6
        f.truncate()
        assert f.size() == 6
        f.truncate(1 << 20)
        f.seek(1 << 19)
        f.write(b"x")
        assert f.seek(0, os.SEEK_HOLE) <= 1 << 19 and f.seek(8192, os.SEEK_DATA) > 8192
        f.sync()
        f.sync(data_only=True)
    with volume.open("/f", "rb", buffering=0) as f:
        assert len(f.read()) == 1 << 20


def test_appending(volume):
    with volume.open("/log", "ab", buffering=0) as f, volume.open("/log", "ab", buffering=0) as g:
        f.write(b"1")
        g.write(b"2")
        f.write(b"3")
        assert f.tell() == 3
    with volume.open("/log", "a+b") as f:
        assert f.tell() == 3
        f.write(b"4")
        f.seek(0)
        assert f.read() == b"1234"


def test_buffers_of_every_kind(volume):
    import array

    with volume.open("/f", "w+b", buffering=0) as f:
        assert f.write(array.array("I", [1, 2])) == 8
        assert f.write(memoryview(b"abcd")[::1]) == 4
        f.seek(0)
        into = array.array("I", [0, 0])
        assert f.readinto(into) == 8 and into.tolist() == [1, 2]
        with pytest.raises((TypeError, BufferError)):
            f.readinto(b"constant")
        with pytest.raises((TypeError, BufferError)):
            f.write(memoryview(b"abcd")[::2])


def test_large_files(volume):
    data = os.urandom(9 << 20)
    path = volume / "large"
    path.write_bytes(data)
    assert path.read_bytes() == data
    with path.open("rb") as f:
        f.seek(5 << 20)
        assert f.read(100) == data[5 << 20 : (5 << 20) + 100]


def test_the_standard_library_works_with_them(volume):
    with volume.open("/z.zip", "w+b") as f:
        with zipfile.ZipFile(f, "w") as z:
            z.writestr("a.txt", "inside")
    with volume.open("/z.zip", "rb") as f, zipfile.ZipFile(f) as z:
        assert z.read("a.txt") == b"inside"
    with volume.open("/t.csv", "w", newline="") as f:
        csv.writer(f).writerows([["a", "b"], [1, "é"]])
    with volume.open("/t.csv", newline="") as f:
        assert list(csv.reader(f)) == [["a", "b"], ["1", "é"]]
    assert volume.path("t.csv").read_bytes() == "a,b\r\n1,é\r\n".encode()


def test_a_full_volume(tmp_path):
    blockwright.mkfs(tmp_path / "s.img", size=8 << 20)
    with blockwright.Volume(tmp_path / "s.img") as volume:
        with pytest.raises(OSError) as full:
            with volume.open("/f", "wb") as f:
                for _ in range(64):
                    f.write(b"x" * (1 << 18))
        assert full.value.errno == errno.ENOSPC
        volume.unlink("/f")


def test_files_of_a_closed_volume(image):
    volume = blockwright.Volume(image)
    f = volume.open("/f", "wb", buffering=0)
    volume.close()
    with pytest.raises(OSError) as stale:
        f.write(b"x")
    assert stale.value.errno == errno.ESTALE
    f.close()


def test_the_end_of_the_interpreter_closes_volumes(image):
    program = "import sys, blockwright\nv = blockwright.Volume(sys.argv[1])\nsys.keep = v\n(v / 'kept').write_text('here')\n"
    subprocess.run([sys.executable, "-c", program, str(image)], check=True)
    assert blockwright.check(image).clean
    with blockwright.Volume(image, read_only=True) as volume:
        assert volume.path("kept").read_text() == "here"


def test_a_file_keeps_its_volume(image):
    file = blockwright.Volume(image).open("/kept", "w")
    gc.collect()
    file.write("here")
    file.close()
    del file
    gc.collect()
    with blockwright.Volume(image, read_only=True) as volume:
        assert volume.open("/kept").read() == "here"
