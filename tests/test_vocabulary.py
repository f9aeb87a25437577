"""One term for each thing: names, docstrings, comments, messages and pages do not contain the old words."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "lance_core",
    "pyspark_lance",
    "lance_dagster",
    "example_project",
    "tests",
    "docs",
    "protos",
    "changes",
)
SUFFIXES = {".py", ".md", ".toml", ".proto", ".yaml"}
OTHERS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "Makefile",
    ".ci/run",
    "mkdocs.yml",
    "pyproject.toml",
)

# The old word, and the term for it.
BANNED = {
    r"[Rr]efus(e|ed|es|ing|al|als)(?![a-z])|REFUS(E|ED|ES|ING|AL)(?![A-Z])": "reject",
    r"\b(an?|the|earlier|later|last|first|each|another|of|other|these|this) tr(y|ies)\b(?! (to|again|it|them)\b)": "attempt",
    r"[a-z]_tries\b|(earlier|kept|replaced|write|first|later|one|another)_try\b": "attempt",
    r"\bways?[_ ]out(?![a-z])": "remedy",
    r"[Uu]pkeep": "maintenance",
    r"[Mm]aterialis": "materialize, as Dagster spells it",
    r"\btext literal|\bis_text\b|\b[Aa] text\b(?! of)|\bno text\b": "string",
    r"\bversion_record\b": "version_header",
    r"\b[Ff]ront doors?\b": "public API",
    r"\bthe house\b": "architecture",
    r"\blooked_until\b": "checked_through",
    r"\b(WriteTry|OnEarlierTry|EarlierTr(y|ies)\w*|\w*earlier_tr(y|ies)|write_try\w*|tries)\b(?<! tries)": "attempt",
    r"\bonce(_since)?=|\b(find|landed)_once\b|`once`": "idempotency_key, idempotency_since",
    r"\b(has|have|may|both|all|that|commits?|writes?|attempts?) land(s|ed)?\b|[Ll]anded[_A-Z]|_landed": "committed",
    r"[Zz]ombie": "orphaned branch",
    r"\bcommit_once\b": "commit_transaction",
    r"(?<![A-Za-z])[Gg]one(?![a-z])|[a-z]Gone(?![a-z])": "deleted, removed, dropped",
    r"(?<![A-Za-z.])[Tt](ells?|elling|old)(?![a-z])": "record, report, return, say; by what things differ",
    r"(?<![a-z])[Bb]rought(?![a-z])": "added",
    r"(?<![a-z])[Aa]new(?![a-z])": "again, restarted, rebuilt",
    r"\b[Ss]o many\b": "the parameter's name",
    r"\b[Tt]hin\b|(?<![a-z])thin_": "pruned, narrow, short",
    r"\bworked out\b": "computed",
    r"\b[Ss]ide by side\b|\bin turns\b(?!:)": "in parallel; round-robin",
    r"\b(others|writers) were faster\b": "others committed first",
    r"\b(Committing|Configuring|Indexing|Inspecting|Maintaining|Branching|Evolving|Changing)Verbs\b": "CommitVerbs, ...",
    r"\b(Settling|Staged|ManifestOutline|VersionRecord)\b": "PendingWrites, UncommittedFiles, FileReferences, VersionHeader",
}
# Files, words of a line that are allowed there, and the reason.
EXCEPTIONS = (
    (
        r"engine/(errors|test_dead_spark)\.py$",
        r"Connection refused",
        "the words of Java, by which an error is recognized",
    ),
    (r"tests/test_architecture\.py$", "So many", "the pattern that rejects docstrings with such a beginning"),
)


@cache
def texts() -> dict[str, str]:
    """The text of each file, without what an exception names."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    found = {str(path.relative_to(ROOT)): path.read_text() for path in (*files, *(ROOT / name for name in OTHERS))}
    return {name: text for name, text in found.items() if name != "tests/test_vocabulary.py"}


@pytest.mark.parametrize(("old", "term"), BANNED.items())
def test_old_words_are_not_used(old, term):
    pattern = re.compile(old)
    found = []
    for name, text in texts().items():
        for match in pattern.finditer(text):
            start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
            line = text[start:end].strip()
            if not any(re.search(path, name) and re.search(words, line) for path, words, _ in EXCEPTIONS):
                found.append(f"{name}:{text.count(chr(10), 0, start) + 1}: {line}")
    assert found == [], f"say {term}"


@pytest.mark.parametrize(("path", "words", "reason"), EXCEPTIONS)
def test_exceptions_are_needed(path, words, reason):
    assert reason
    assert any(
        re.search(path, name) and re.search(words, line) and any(re.search(old, line) for old in BANNED)
        for name, text in texts().items()
        for line in text.splitlines()
    )
