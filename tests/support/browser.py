"""Pages of the Dagster UI in headless Chromium."""

import shutil

from tests import processes

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def browse(url, profile, *arguments, size="1600,1900"):
    fixed = [
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking",
        "--disable-component-update --disable-sync --hide-scrollbars --virtual-time-budget=25000",
        f"--window-size={size}",
    ]
    command = [CHROMIUM, *" ".join(fixed).split(), f"--user-data-dir={profile}", *arguments, url]
    return processes.run(command, check=True).stdout
