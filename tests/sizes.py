"""Sizes of the packages: lines of code, and names that fit any value."""

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("lance_core", "pyspark_lance", "lance_dagster")

GENERIC: Final = frozenset(
    [
        "found",
        "one",
        "own",
        "known",
        "kept",
        "given",
        "made",
        "wanted",
        "asked",
        "meant",
        "sought",
        "taken",
        "here",
        "there",
        "others",
        "theirs",
    ]
)
"""Words that say nothing of the value that they name."""

_LAYOUT: Final = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def source_files() -> Iterator[Path]:
    """The modules of the packages, without generated ones."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "_proto" not in path.parts)


def count_code_lines() -> int:
    """Lines of code of the packages, without docstrings, comments and blank lines."""
    return sum(len(code_lines(path.read_text())) for path in source_files())


def code_lines(source: str) -> set[int]:
    """The numbers of a module's lines that are neither blank nor a comment or docstring, also of attributes."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that a module binds, with its line: variables, parameters, functions, classes and aliases."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node.lineno
            case ast.ExceptHandler(name=str(name)) | ast.alias(asname=str(name)):
                yield name, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno


def generic_names() -> list[str]:
    """The places of names in `GENERIC`, as `path:line name`."""
    return [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path in source_files()
        for name, line in bound_names(ast.parse(path.read_text()))
        if name.strip("_") in GENERIC
    ]
