"""Sends the corpus down its roads: `python -m tests.corpus [--seconds S] [--only PATTERN] [--list]`.

Exits with 1 if something went wrong, and prints the name of each file and road; `--only` takes such a name.
"""

import argparse
import itertools
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from tests.corpus import arrow_files, frame_files, old_files, text_files
from tests.corpus.run import Trip, findings, plan

__all__ = ["all_trips", "main"]


def all_trips() -> Iterator[Trip]:
    """Every file on every road."""
    return plan(itertools.chain(old_files.files(), frame_files.files(), text_files.files(), arrow_files.files()))


def main(arguments: list[str] | None = None) -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--only", default="", help="a pattern of file:road:version")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args(arguments)
    trips = [trip for trip in all_trips() if re.search(options.only, trip.name) or trip.name == options.only]
    if options.list:
        print(*(trip.name for trip in trips), sep="\n")
        return 0
    warnings.simplefilter("ignore")
    seconds = options.seconds if options.minutes is None else 60 * options.minutes
    done: list[Trip] = []
    num_findings = 0
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        for finding in findings(trips, Path(folder), seconds, done.append):
            num_findings += 1
            print(f"{finding.name}\n    {finding.what}\nreplay: --only '^{re.escape(finding.name)}$'", flush=True)
            if options.minutes is not None:
                break
    files = len({trip.sample.name for trip in done})
    print(f"{len(done)} of {len(trips)} trips of {files} files, {num_findings} findings")
    return 1 if num_findings else 0


if __name__ == "__main__":
    sys.exit(main())
