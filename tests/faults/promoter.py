"""A process that promotes a branch when it is asked to, and reports the outcome.

    python -m tests.faults.promoter URI BRANCH OPTIONS

prints "ready", waits for a line, promotes, and prints the version, or the name and text of the error.
"""

import json
import sys

import lance_core
from lance_core.errors import LanceError


def main() -> None:
    uri, branch, options = sys.argv[1:]
    dataset = lance_core.dataset(uri, storage_options=json.loads(options) or None)
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        done = dataset.branches.promote(branch)
    except LanceError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)
    else:
        print(json.dumps({"version": done.version, "deduplicated": done.deduplicated}), flush=True)


if __name__ == "__main__":
    main()
