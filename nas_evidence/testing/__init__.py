"""Tests of what an executor and a watcher of your own owe to a search; they need pytest.

Subclass a contract in a test file of yours, and pytest runs all of its tests:

    from nas_evidence.testing import ExecutorContract

    class TestMyExecutor(ExecutorContract):
        make = MyExecutor
"""

import pytest

pytest.register_assert_rewrite(
    "nas_evidence.testing.executor_contract", "nas_evidence.testing.watcher_contract"
)

from nas_evidence.testing.executor_contract import ExecutorContract  # noqa: E402
from nas_evidence.testing.watcher_contract import WatcherContract  # noqa: E402

__all__ = ["ExecutorContract", "WatcherContract"]
