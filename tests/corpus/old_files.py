"""Tables that early releases of pylance wrote; `old_tables/write.py` made them."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import lance

from tests.corpus.sample import Sample

__all__ = ["files"]

ARCHIVES = Path(__file__).parent / "old_tables"


def files() -> Iterator[Sample]:
    """The tables of each release."""
    for path in sorted(ARCHIVES.glob("*.zip"), key=lambda path: [int(part) for part in path.stem.split(".")]):
        with zipfile.ZipFile(path) as archive:
            folders = sorted({name.partition("/")[0] for name in archive.namelist()})
        for inner in folders:

            def write(folder: Path, path: Path = path, inner: str = inner) -> Path:
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(folder, [name for name in archive.namelist() if name.startswith(f"{inner}/")])
                return folder / inner

            yield Sample(
                name=f"pylance/{path.stem} {inner}",
                write=write,
                read=lambda place: lance.dataset(str(place)).to_table(),
                form="lance",
            )
