"""`make bench`: every benchmark, one after the other, each beside what it is compared to.

`python -m tests.benchmarks files` runs only those whose name contains a word.
"""

import runpy
import sys
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("bench_*.py")):
    if not sys.argv[1:] or any(word in path.stem for word in sys.argv[1:]):
        print(f"\n== {path.stem} ==", flush=True)
        runpy.run_path(str(path), run_name="__main__")
