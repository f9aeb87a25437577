"""One term for one thing: words that are not used any more, in names, docstrings, comments, messages and pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("lance_core", "pyspark_lance", "lance_dagster", "example_project", "tests", "docs", "protos", "changes")
SUFFIXES = {".py", ".md", ".toml", ".proto", ".yaml"}
OTHERS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "pyproject.toml")

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
    r"\b(others|writers) were faster\b": "others committed first",
    r"\b(Committing|Configuring|Indexing|Inspecting|Maintaining|Branching|Evolving|Changing)Verbs\b": "CommitVerbs, ...",
    r"\b(Settling|Staged|ManifestOutline|VersionRecord)\b": "PendingWrites, UncommittedFiles, FileReferences, VersionHeader",
}
EXCEPTIONS = {
    "pyspark_lance/engine/errors.py": "Connection refused",  # the words of Java, by which an error is recognized
    "tests/pyspark_lance/engine/test_dead_spark.py": "Connection refused",  # the same
    "tests/test_vocabulary.py": "",  # this list
}


def lines():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]
    for path in (*files, *(ROOT / name for name in OTHERS)):
        name = str(path.relative_to(ROOT))
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if name not in EXCEPTIONS or (EXCEPTIONS[name] and not re.search("[Cc]onnection ?[Rr]efused", line)):
                yield f"{name}:{number}", line


@pytest.mark.parametrize(("old", "term"), BANNED.items())
def test_old_words_are_not_used(old, term):
    pattern = re.compile(old)
    found = [f"{where}: {line.strip()}" for where, line in lines() if pattern.search(line)]
    assert found == [], f"say {term}"
