"""What the tests share: an image of each format."""

import blockwright
import pytest


@pytest.fixture(params=["ext4", "f2fs"])
def image(request, tmp_path):
    path = tmp_path / f"{request.param}.img"
    blockwright.mkfs(path, size=64 << 20, format=request.param, label="test")
    return path


@pytest.fixture
def volume(image):
    with blockwright.Volume(image) as volume:
        yield volume
