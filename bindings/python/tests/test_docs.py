"""The examples of the manual run."""

import os
import re
import sys
from pathlib import Path

import pytest

PAGES = [Path(page) for page in os.environ.get("BLOCKWRIGHT_PAGES", "").split(os.pathsep) if page]


def blocks():
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S)):
            yield pytest.param(block, id=f"{page.name}-{number}")


@pytest.mark.parametrize("block", list(blocks()))
def test_example(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "rootfs" / "motd").write_text("hello\n")
    if "pandas" in block:
        pytest.importorskip("pandas")
    exec(compile(block, "example", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    for expected in re.findall(r"# prints: (.*)", block):
        assert expected in printed, printed


def test_there_are_examples():
    assert not PAGES or len(list(blocks())) >= 3
