"""`make bench`: every benchmark, one after the other, each beside what it is compared to.

`python -m tests.benchmarks files` runs only those whose name contains a word.
"""

import subprocess
import sys
from pathlib import Path

failed = []
for path in sorted(Path(__file__).parent.glob("bench_*.py")):
    if not sys.argv[1:] or any(word in path.stem for word in sys.argv[1:]):
        print(f"\n== {path.stem} ==", flush=True)
        # A process of its own: neither the memory nor the session nor the failure of one concerns the next.
        done = subprocess.run([sys.executable, "-m", f"tests.benchmarks.{path.stem}"], check=False)
        failed += [path.stem] if done.returncode else []
sys.exit(f"failed: {', '.join(failed)}" if failed else 0)
