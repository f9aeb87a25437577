"""Pages of the Dagster UI in headless Chromium."""

import base64
import json
import shutil
import time
import urllib.request

from websockets.sync.client import connect

from tests import processes

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FIXED = [
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking",
    "--disable-component-update --disable-sync --hide-scrollbars",
]
LIMIT_S = 300


def browse(url, profile, *arguments, size="1600,1900"):
    fixed = [*" ".join(_FIXED).split(), "--virtual-time-budget=25000", f"--window-size={size}"]
    command = [CHROMIUM, *fixed, f"--user-data-dir={profile}", *arguments, url]
    return processes.run(command, check=True).stdout


def photograph(url, profile, scripts, picture, *, size="1600,1900"):
    """Take a picture of a page after scripts, each of which is run until it returns what is true; the text of the page.

    The last script returns what the picture shows: x, y, width and height.
    """
    with processes.held_port() as port:
        fixed = [*" ".join(_FIXED).split(), f"--window-size={size}", f"--remote-debugging-port={port}"]
        command = [CHROMIUM, *fixed, f"--user-data-dir={profile}", url]
        with processes.running(command, log=profile.with_suffix(".log")):
            end = time.monotonic() + LIMIT_S
            with connect(_find_page(port, end), max_size=None) as page:
                for script in scripts:
                    while not (
                        shown := _ask(
                            page, "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
                        )["result"].get("value")
                    ):
                        assert time.monotonic() < end, f"still not true: {script}"
                        time.sleep(0.3)
                clip = {**shown, "scale": 1.5}
                data = _ask(page, "Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
                picture.write_bytes(base64.b64decode(data))
                text = _ask(page, "Runtime.evaluate", expression="document.body.innerText", returnByValue=True)
                return text["result"]["value"]


def _find_page(port, end):
    """The address by which a page is controlled."""
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=5) as answer:
                pages = [entry for entry in json.load(answer) if entry["type"] == "page"]
        except OSError:
            pages = []
        if pages:
            return pages[0]["webSocketDebuggerUrl"]
        time.sleep(0.3)
    raise TimeoutError("Chromium shows no page")


def _ask(page, method, **params):
    page.send(json.dumps({"id": 1, "method": method, "params": params}))
    while "id" not in (answer := json.loads(page.recv(timeout=LIMIT_S))):
        pass
    return answer["result"]
