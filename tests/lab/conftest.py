"""What tests of the laboratory share: whether there can be one."""

import pytest
from rights import lacking

from playground.lab.hosts import unavailable


@pytest.fixture(scope="session")
def hosts() -> None:
    """Skips what needs hosts where there can be none."""
    if reason := unavailable():
        lacking(reason)
