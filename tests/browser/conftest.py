"""Tests in a real browser: Debian's chromium, driven by playwright."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """A headless browser. Without one the tests are skipped, but not in CI, where that would hide them."""
    path = os.environ.get("BFN_CHROMIUM") or shutil.which("chromium")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("chromium is not installed, and CI asks for the browser tests")
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
