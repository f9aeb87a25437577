"""A store that misbehaves at one chosen call: it fails, loses the answer, or its process dies."""

from enum import Enum

from lance_core.errors import OutcomeUnknownError, StoreError
from lance_core.store.base import delete_each

_CALLS = (
    *("get", "get_range", "get_tail", "get_ranges", "read", "head", "list", "list_owned"),
    *("put", "put_if_absent", "delete", "copy", "remove_link", "remove_empty_folders"),
)


class Killed(BaseException):
    """The process died here: nothing after this line ran."""


class Fault(Enum):
    FAIL = "the call fails and has no effect"
    LOST_ANSWER = "the call has its effect, but fails"
    KILL_BEFORE = "the process dies before the call"
    KILL_AFTER = "the process dies after the call"


class FaultyStore:
    """Passes everything on to another store, but for call number `at`, counted from 0."""

    def __init__(self, store, at=None, fault=None):
        self._store = store
        self._at = at
        self._fault = fault
        self.calls = []

    @property
    def root(self):
        return self._store.root

    @property
    def options(self):
        return self._store.options

    @property
    def is_local(self):
        return self._store.is_local

    @property
    def put_is_a_request(self):
        return self._store.put_is_a_request

    @property
    def keys_per_delete(self):
        return 1

    def delete_many(self, keys):
        return delete_each(self.delete, keys)

    def prepare_commits(self):
        self._store.prepare_commits()

    def _call(self, name, *args, **kwargs):
        number = len(self.calls)
        self.calls.append((name, args[0]))
        real = getattr(self._store, name)
        if number != self._at:
            return real(*args, **kwargs)
        if self._fault is Fault.KILL_BEFORE:
            raise Killed
        if self._fault is Fault.FAIL:
            raise StoreError("injected")
        result = real(*args, **kwargs)
        if name.startswith("list"):
            list(result)
        if self._fault is Fault.KILL_AFTER:
            raise Killed
        # A store knows which of its calls leave the outcome open.
        raise (OutcomeUnknownError if name == "put_if_absent" else StoreError)("injected")


for _name in _CALLS:
    setattr(FaultyStore, _name, lambda self, *args, _name=_name, **kwargs: self._call(_name, *args, **kwargs))
