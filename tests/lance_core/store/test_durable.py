"""Files on their way to storage in the background."""

import pytest

from lance_core.store import PendingWrites


class Interrupted:
    """A file that is being written when the thread that waits for it is interrupted."""

    def __init__(self, said):
        self.said = said

    def result(self):
        self.said.append("waited")
        raise KeyboardInterrupt

    def exception(self):
        self.said.append("ended")


def test_a_file_that_is_waited_for_when_an_interruption_comes_has_ended_when_it_is_removed(monkeypatch):
    said = []
    monkeypatch.setattr("lance_core.store.durable._pool.submit", lambda _: Interrupted(said))
    pending = PendingWrites()
    pending.add(print)
    pending.add(print)
    with pytest.raises(KeyboardInterrupt):
        pending.wait(1)
    assert said == ["waited", "ended", "ended"]
