"""A disk that fails where a test says."""

from __future__ import annotations

import pytest
from tests.storage.faulty_file_system import FaultyFileSystem


@pytest.fixture
def disk() -> FaultyFileSystem:
    return FaultyFileSystem()
