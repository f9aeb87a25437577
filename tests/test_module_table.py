"""The table of tests in tests/README.md names all packages, and existing tests."""

from tests import module_table


def test_the_table_of_tests_is_true():
    text = module_table.PAGE.read_text()
    assert module_table.written(text) == text, "make module-table"
    assert [
        one for tests in module_table.FROM_OUTSIDE.values() for one in tests if not (module_table.ROOT / one).exists()
    ] == []
