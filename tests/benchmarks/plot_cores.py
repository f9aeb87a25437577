"""Draw what bench_cores printed: seconds of each job against cores, ours, pylance's and those of zstd Parquet.

python -m tests.benchmarks.bench_cores > cores.txt
python -m tests.benchmarks.plot_cores cores.txt docs/cores.svg
"""

import re
import sys
from pathlib import Path

COLORS = {"ours": "#1f77b4", "pylance": "#d62728", "Parquet": "#7f7f7f"}
LINE = re.compile(rf"(?P<job>\S.*?)\s+(?P<who>{'|'.join(COLORS)})\s")
WIDTH, HEIGHT, COLUMNS = 180, 150, 4  # of the panel of a job, and how many stand in a row
LEFT, TOP, RIGHT, BOTTOM = 34, 34, 8, 26  # around the lines of a panel

Figures = dict[str, dict[str, list[float]]]  # seconds of a job, of whom, by cores


def read_table(text: str) -> tuple[list[int], Figures]:
    """The numbers of cores and the seconds that bench_cores printed."""
    lines = text.splitlines()
    head = next(line for line in lines if line.startswith("job"))
    cores = [int(count) for count in re.findall(r"(\d+): wall", head)]
    figures: Figures = {}
    for match in filter(None, map(LINE.match, lines)):
        seconds = [float(wall) for wall, _ in re.findall(r"([\d.]+), *([\d.]+),", match.string[match.end() :])]
        figures.setdefault(match["job"], {})[match["who"]] = seconds
    return cores, figures


def draw_panel(job: str, seconds: dict[str, list[float]], cores: list[int], left: int, top: int) -> list[str]:
    """The lines of one job; the upper edge is its longest time."""
    most = max(max(values) for values in seconds.values())
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    across = [left + LEFT + width * place // max(len(cores) - 1, 1) for place in range(len(cores))]
    ground = top + TOP + height
    parts = [
        f'<text x="{left + LEFT}" y="{top + TOP - 10}" font-size="12">{job}</text>',
        f'<path d="M{left + LEFT},{top + TOP}V{ground}H{left + LEFT + width}" fill="none" stroke="#bbb"/>',
        f'<text x="{left + LEFT - 4}" y="{top + TOP + 4}" text-anchor="end">{most:.2g}</text>',
        f'<text x="{left + LEFT - 4}" y="{ground + 4}" text-anchor="end">0</text>',
    ]
    parts += [
        f'<text x="{x}" y="{ground + 14}" text-anchor="middle">{count}</text>'
        for x, count in zip(across, cores, strict=True)
    ]
    for who, values in seconds.items():
        points = [f"{x},{ground - height * value / most:.0f}" for x, value in zip(across, values, strict=True)]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLORS[who]}" stroke-width="2"/>')
    return parts


def draw(cores: list[int], figures: Figures) -> str:
    """The picture as SVG."""
    rows = -(-len(figures) // COLUMNS)
    width, height = WIDTH * COLUMNS, HEIGHT * rows + 40
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"'
            f' font-size="10" role="img" aria-label="Seconds of each job against the number of cores">'
        ),
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="10" y="24" font-size="15">Seconds of a job by cores ({cores[0]} to {cores[-1]})</text>',
    ]
    names = {"ours": "lance_core", "pylance": "pylance 14", "Parquet": "pyarrow, zstd Parquet"}
    for place, (who, color) in enumerate(COLORS.items()):
        parts.append(f'<text x="{330 + 110 * place}" y="24" font-size="13" fill="{color}">{names[who]}</text>')
    for place, (job, seconds) in enumerate(figures.items()):
        parts += draw_panel(job, seconds, cores, place % COLUMNS * WIDTH, place // COLUMNS * HEIGHT + 36)
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(*read_table(Path(sys.argv[1]).read_text())))
