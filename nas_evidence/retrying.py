"""Try again, with pauses, what may succeed a little later; sole importer of tenacity."""

import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, wait_exponential

T = TypeVar("T")


def try_again(
    action: Callable[[], T],
    *,
    when: Callable[[BaseException], bool],
    patience: float,
    pause: float,
    longest_pause: float,
    before_pause: Callable[[BaseException], None] | None = None,
    sleep: Callable[[float], None] | None = None,
) -> T:
    """Return what the action returns; try it again after an error that waiting may mend.

    Args:
        action: carried out at least once.
        when: tells whether an error is worth another try.
        patience: seconds after whose end no try begins; 0 for one try.
        pause: seconds before the second try; each one is twice as long as the one before.
        longest_pause: seconds that a pause takes at most.
        before_pause: is told each error that is followed by another try.
        sleep: in place of `time.sleep`; its seconds count whether they pass or not.

    Raises:
        BaseException: the last error of the action, as it was.
    """

    def is_over(state: RetryCallState) -> bool:
        gone = max(state.seconds_since_start or 0.0, state.idle_for)
        return gone + state.upcoming_sleep > patience

    def note(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if before_pause is not None and error is not None:
            before_pause(error)

    retrying = Retrying(
        retry=retry_if_exception(when),
        stop=is_over,
        wait=wait_exponential(multiplier=pause, max=longest_pause),
        before_sleep=note,
        sleep=sleep or time.sleep,
        reraise=True,
    )
    return retrying(action)
