"""A real Chromium without a window and without a network; skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

BINARY, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    """The browser; whatever asks the network fails, and is noted in its log."""
    if BINARY is None or DRIVER is None:
        pytest.skip("no chromium and chromedriver on the path: `make browser-setup` installs them")
    selenium = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = BINARY
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--window-size=1200,900",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(DRIVER))
    driver.execute_cdp_cmd("Network.enable", {})
    driver.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    yield driver
    driver.quit()
