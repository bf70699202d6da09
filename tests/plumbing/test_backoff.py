"""What may succeed a little later is tried again, with growing pauses and not for ever."""

import pytest

from nas_evidence.plumbing.backoff import try_again


class Flaky:
    """Fails so many times, then succeeds."""

    def __init__(self, n_failures: int, error: type[BaseException] = ConnectionError) -> None:
        self.left, self.error, self.n = n_failures, error, 0

    def __call__(self) -> str:
        self.n += 1
        if self.n <= self.left:
            raise self.error(f"try {self.n}")
        return "done"


def tried(action: Flaky, patience: float = 10.0) -> tuple[str, list[float], list[str]]:
    pauses: list[float] = []
    errors: list[str] = []
    found = try_again(
        action,
        when=lambda error: isinstance(error, ConnectionError),
        patience=patience,
        pause=0.5,
        longest_pause=3.0,
        before_pause=lambda error: errors.append(str(error)),
        sleep=pauses.append,
    )
    return found, pauses, errors


def test_pauses_double_up_to_the_longest_and_each_error_is_told() -> None:
    found, pauses, errors = tried(Flaky(5))
    assert found == "done"
    assert pauses == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert errors == [f"try {n}" for n in range(1, 6)]


@pytest.mark.parametrize(("patience", "n_tries"), [(0.0, 1), (0.6, 2), (3.4, 3), (3.6, 4)])
def test_no_try_begins_when_patience_is_over_and_the_last_error_comes_out(
    patience: float, n_tries: int
) -> None:
    action = Flaky(100)
    with pytest.raises(ConnectionError, match=f"try {n_tries}"):
        tried(action, patience)
    assert action.n == n_tries


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_that_waiting_does_not_mend_is_raised_at_once(
    error: type[BaseException],
) -> None:
    action = Flaky(1, error)
    with pytest.raises(error, match="try 1"):
        tried(action)
    assert action.n == 1
