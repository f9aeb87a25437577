"""The public module of progress callbacks for writes of fragments, as pylance's `lance.progress`."""

from lance_core.verbs.files.progress import (
    FileSystemFragmentWriteProgress,
    FragmentWriteProgress,
    NoopFragmentWriteProgress,
)

__all__ = ["FileSystemFragmentWriteProgress", "FragmentWriteProgress", "NoopFragmentWriteProgress"]
