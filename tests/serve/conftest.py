"""The store of these tests, filled once."""

from __future__ import annotations

import pytest
import shop as shops


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> shops.Shop:
    return shops.made(f"sqlite:///{tmp_path_factory.mktemp('shop') / 's.sqlite'}")
