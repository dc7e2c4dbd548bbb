"""Playwright's own event loop runs on the main thread here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def jp_asyncio_loop() -> None:
    """In the place of pytest-jupyter's, which would close the loop that runs."""


@pytest.fixture(autouse=True)
def jp_server_cleanup() -> None:
    """In the place of pytest-jupyter's: no server runs in this process."""
