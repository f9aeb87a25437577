"""Operations on a version of a dataset: scans, writes, columns, indices, references.

CONTRIBUTING.md has the order of the packages, and import contracts enforce it.
"""
