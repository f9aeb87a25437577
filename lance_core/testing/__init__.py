"""Conformance tests for stores that are written outside of this project: pytest classes to be subclassed.

    from lance_core.testing import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return MyStore(tmp_path)

This is the only package here that needs pytest.
"""

import pytest

pytest.register_assert_rewrite("lance_core.testing.stores")

from lance_core.testing.racing import race  # noqa: E402 - pytest rewrites assertions of modules that come later
from lance_core.testing.stores import CreationConformance, ObjectConformance, StoreConformance, StreamConformance  # noqa: E402 - pytest rewrites assertions of modules that come later

__all__ = ["CreationConformance", "ObjectConformance", "StoreConformance", "StreamConformance", "race"]
