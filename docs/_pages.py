"""Pages that are made from the code itself when the site is built.

format.md          the drawings at the heads of the modules that own bytes
architecture.md    which package imports which, as a picture and as words
architecture.svg   the picture
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from html import escape
from importlib import import_module
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
PACKAGES = ("lance_dagster", "pyspark_lance", "lance_core")
# Where bytes are read and written.
OWNERS = ("table", "commit", "file", "encoding", "index")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of this module to the files of MkDocs, which calls this hook."""
    folders = imports()
    floors = floors_of(folders)
    files.append(File.generated(config, "format.md", content=format_page()))
    files.append(File.generated(config, "architecture.md", content=architecture_page(folders, floors)))
    files.append(File.generated(config, "architecture.svg", content=picture(folders, floors)))
    for package in PACKAGES:
        files.append(File.generated(config, f"reference/{package}.md", content=reference_page(package)))
    return files


def format_page() -> str:
    """The docstrings that draw layouts of bytes, from the table down to the page."""
    about = "Each module that reads and writes bytes draws them. These are the drawings, as they stand in the code."
    parts = ["# How the format works", about]
    for owner in OWNERS:
        for path in sorted((ROOT / "lance_core" / owner).rglob("*.py")):
            text = ast.get_docstring(ast.parse(path.read_text()))
            if text and "\n\n    " in text:
                title, _, body = text.partition("\n")
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                parts += [f"## {title.rstrip('.')}", f"`{name}`", f"```text\n{body.strip(chr(10))}\n```"]
    return "\n\n".join(parts) + "\n"


def reference_page(package: str) -> str:
    """The public names of a package, each documented where it is defined."""
    names = import_module(package).__all__
    parts = [f"# {package}"]
    for name in names:
        value = getattr(import_module(package), name)
        home = getattr(value, "__module__", "")
        if home.startswith(PACKAGES):
            parts.append(f"::: {home}.{value.__qualname__}")
    return "\n\n".join([*parts, ""])


def imports() -> dict[str, set[str]]:
    """Each package, and the others that its modules import at any place."""
    folders: dict[str, set[str]] = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            folder = folder_of(path.relative_to(ROOT).with_suffix("").parts)
            if folder is not None:
                found = (folder_of(tuple(name.split("."))) for name in imported(ast.parse(path.read_text())))
                folders.setdefault(folder, set()).update(other for other in found if other not in (None, folder))
    return folders


def folder_of(parts: tuple[str, ...]) -> str | None:
    """The package to which a module belongs: its first sub-package below lance_core, else the whole package."""
    if parts[0] not in PACKAGES or "_proto" in parts:
        return None
    if parts[0] != "lance_core":
        return parts[0]
    below = [part for part in parts[1:] if part != "__init__"]
    if not below:
        return None
    return below[0] if (ROOT / "lance_core" / below[0]).is_dir() or below[0] == "errors" else None


def imported(tree: ast.AST) -> Iterator[str]:
    """The names of the modules that code imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def floors_of(folders: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each folder: one above the highest that it imports."""
    floors: dict[str, int] = {}

    def floor(folder: str) -> int:
        if folder not in floors:
            floors[folder] = 0
            floors[folder] = 1 + max((floor(other) for other in folders.get(folder, ())), default=-1)
        return floors[folder]

    for folder in sorted(folders):
        floor(folder)
    return floors


def architecture_page(folders: dict[str, set[str]], floors: dict[str, int]) -> str:
    """The page with the picture, and a table of the same imports."""
    order = sorted(folders, key=lambda folder: (-floors[folder], folder))
    lines = [
        f"| `{folder}` | {', '.join(f'`{other}`' for other in sorted(folders[folder])) or '-'} |" for folder in order
    ]
    return (
        "# Architecture\n\nThree packages, each usable without the one above it. Imports run downwards only, which"
        " continuous integration checks; the picture is drawn from the imports of the code when this page is built.\n\n"
        "![Packages and their imports](architecture.svg)\n\n| package | imports |\n|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )


def picture(folders: dict[str, set[str]], floors: dict[str, int]) -> str:
    """The picture: a box for each package, by floors, and a line for each import."""
    width, height, gap, step = 150, 36, 24, 84
    levels: dict[int, list[str]] = {}
    for folder, floor in floors.items():
        levels.setdefault(floor, []).append(folder)
    across = max(map(len, levels.values())) * (width + gap) + gap
    down = len(levels) * step + gap
    at: dict[str, tuple[float, float]] = {}
    for floor, names in levels.items():
        free = (across - len(names) * (width + gap)) / 2
        for index, folder in enumerate(sorted(names)):
            at[folder] = (free + gap / 2 + index * (width + gap), gap / 2 + (max(levels) - floor) * step)
    lines, boxes = [], []
    for folder, others in sorted(folders.items()):
        x, y = at[folder]
        for other in sorted(others):
            to_x, to_y = at[other]
            ends = f'x1="{x + width / 2:.0f}" y1="{y + height:.0f}" x2="{to_x + width / 2:.0f}" y2="{to_y:.0f}"'
            lines.append(f'<line {ends} stroke="#9fa8da" stroke-width="1"/>')
        boxes.append(
            f'<rect x="{x:.0f}" y="{y:.0f}" width="{width}" height="{height}" rx="6" fill="#e8eaf6" stroke="#3f51b5"/>'
            f'<text x="{x + width / 2:.0f}" y="{y + 23:.0f}" font-family="sans-serif" font-size="14"'
            f' text-anchor="middle">{escape(folder)}</text>'
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {across:.0f} {down:.0f}">'
    return f"{head}{''.join(lines)}{''.join(boxes)}</svg>\n"
