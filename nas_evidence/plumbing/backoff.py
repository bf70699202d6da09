"""Retries with growing pauses; only this module imports tenacity."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tenacity import RetryCallState

T = TypeVar("T")


def try_again(
    action: Callable[[], T],
    *,
    when: Callable[[BaseException], bool],
    patience: float,
    pause: float,
    longest_pause: float,
    before_pause: Callable[[BaseException], None] = lambda error: None,
    sleep: Callable[[float], None] | None = None,
) -> T:
    """Return what the action returns; retry after errors that may be temporary.

    Args:
        action: called at least once.
        when: returns whether to retry after an error.
        patience: seconds after which no try begins; 0 for a single try.
        pause: seconds before the second try; doubled before each further one.
        longest_pause: upper limit of a pause, seconds.
        before_pause: called with each error that is followed by a retry.
        sleep: replaces `time.sleep`; its seconds count even if no time passes.

    Raises:
        BaseException: the last error of the action, unchanged.
    """
    from tenacity import Retrying, retry_if_exception, wait_exponential  # late: with asyncio

    def is_over(state: "RetryCallState") -> bool:
        gone = max(state.seconds_since_start or 0.0, state.idle_for)
        return gone + state.upcoming_sleep > patience

    return Retrying(
        retry=retry_if_exception(when),
        stop=is_over,
        wait=wait_exponential(multiplier=pause, max=longest_pause),
        before_sleep=lambda state: before_pause(state.outcome.exception()),  # type: ignore[union-attr,arg-type]
        sleep=sleep or time.sleep,
        reraise=True,
    )(action)
