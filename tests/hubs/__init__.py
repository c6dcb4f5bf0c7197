"""Hub servers for tests, all on the loopback interface: a real one, and faults in front of it."""

from __future__ import annotations

from importlib.metadata import version

import pytest

#: What was measured with today's library, and is otherwise with the oldest that we run beside.
measured = pytest.mark.skipif(
    int(version("huggingface_hub").partition(".")[0]) < 1,
    reason="this huggingface_hub is older than what was measured",
)
