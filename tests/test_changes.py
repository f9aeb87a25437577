"""The changelog is short and grouped, and changes since a release stand in files of their own."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("added", "changed", "fixed", "removed", "documented")
LINES = 25


def test_each_version_of_the_changelog_is_short_and_grouped():
    _, *versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert versions
    for version in versions:
        head, *groups = re.split(r"^### ", version, flags=re.MULTILINE)
        title, *between = filter(None, map(str.strip, head.splitlines()))
        assert between == [], f"{title}: lines outside of the groups"
        lines = [line for group in groups for line in filter(None, group.splitlines()[1:])]
        assert 0 < len(lines) <= LINES, (
            f"{title}: a change that users see goes into a file in changes/, see its README.md"
        )


def test_fragments_have_a_name_and_a_sentence():
    for path in sorted((ROOT / "changes").iterdir()):
        if path.name == "README.md":
            continue
        assert re.fullmatch(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md", path.name), (
            f"{path.name}: see README.md"
        )
        text = path.read_text().strip()
        assert text.endswith("."), f"{path.name}: a sentence"
        assert not text.startswith(("#", "-")), f"{path.name}: a sentence"
        assert len(text.splitlines()) <= 3, f"{path.name}: at most three lines"
