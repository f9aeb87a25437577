"""Settings of tests of Hypothesis that take seconds."""

from collections.abc import Callable

import pytest
from hypothesis import settings


def examples(number: int, **options: object) -> Callable:
    """A decorator with which `make test` draws a third of the examples, and `make test-slow` all of them.

    Args:
        number: How many examples there are in all.
        **options: Further settings.
    """
    few = settings.get_current_profile_name() == "few"
    chosen = settings(max_examples=number // 3 if few else number, **options)
    return chosen if few else lambda test: pytest.mark.slow(chosen(test))
