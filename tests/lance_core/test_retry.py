"""The loop that does a change again: what it begins with, when it stops, and which error it raises then."""

from datetime import timedelta

import pytest

import lance_core
from lance_core.errors import (
    BranchConflictError,
    EarlierAttemptCommittedError,
    HistoryGapError,
    InvalidInputError,
    RetryableConflictError,
)


def failing(*errors):
    """An attempt that raises these one after the other, and then returns what it was called with."""
    left = list(errors)

    def attempt(base, number):
        if left:
            raise left.pop(0)
        return base, number

    return attempt


def next_one(base, _error):
    return base + 1


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_each_attempt_begins_with_what_follows():
    attempt = failing(RetryableConflictError("a"), HistoryGapError("b"))
    assert lance_core.retrying(7, attempt, next_one) == (9, 3)


def test_the_last_conflict_is_raised_as_it_is():
    with pytest.raises(RetryableConflictError) as raised:
        lance_core.retrying(
            0,
            failing(RetryableConflictError("first"), RetryableConflictError("second"), RetryableConflictError("third")),
            next_one,
            conflict_retries=1,
        )
    assert str(raised.value) == "second"
    assert raised.value.__cause__ is None


def test_the_caller_names_the_error_of_the_last_attempt():
    conflict = RetryableConflictError("b")
    with pytest.raises(BranchConflictError) as raised:
        lance_core.retrying(
            0,
            failing(RetryableConflictError("a"), conflict),
            next_one,
            conflict_retries=1,
            exhausted=lambda number, error: BranchConflictError(f"{number} attempts: {error}"),
        )
    assert str(raised.value) == "2 attempts: b"
    assert raised.value.__cause__ is conflict


@pytest.mark.parametrize("error", [BranchConflictError("x"), EarlierAttemptCommittedError("x", 3), ValueError("x")])
def test_what_needs_a_decision_is_raised_at_once(error):
    with pytest.raises(type(error)):
        lance_core.retrying(0, failing(error), next_one)


def test_a_caller_can_follow_an_earlier_attempt():
    followed = []

    def following(base, error):
        followed.append(error.version)
        return base + 1

    done = lance_core.retrying(
        0, failing(EarlierAttemptCommittedError("x", 3)), following, is_retryable=lambda error: error.retryable
    )
    assert (done, followed) == ((1, 2), [3])


def test_no_attempt_begins_after_the_timeout(monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    with pytest.raises(RetryableConflictError) as raised:
        lance_core.retrying(0, failing(RetryableConflictError("a")), next_one, retry_timeout=timedelta(seconds=15))
    assert str(raised.value) == "a"


@pytest.mark.parametrize("limits", [{"conflict_retries": -1}, {"retry_timeout": timedelta(seconds=-1)}])
def test_limits_are_not_negative(limits):
    with pytest.raises(InvalidInputError, match="must not be negative"):
        lance_core.retrying(0, failing(), next_one, **limits)
