"""The browser that tests and measurements drive."""

import pytest

from playground.browser import find_browser, missing


@pytest.mark.skipif(not find_browser(), reason="no browser on this machine")
def test_a_library_that_playwright_lacks_is_told_in_a_line(tmp_path):
    """A bare Debian has none for atomic operations, which its Node is linked to."""
    node = tmp_path / "node"
    says = "node: error while loading shared libraries: libatomic.so.1"
    node.write_text(f"#!/bin/sh\necho '{says}' >&2; exit 127\n")
    node.chmod(0o755)
    why = missing(node)
    assert why is not None
    assert why.endswith(says)
    assert "install libatomic1" in why
