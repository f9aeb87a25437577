"""Jobs of the children of maintenance, done in the process of a test."""

import json

from lance_core.maintenance.routine import declared, indices
from lance_core.maintenance.search import cover
from lance_core.maintenance.search.child import ChildFailedError
from lance_core.maintenance.search.jobs import JOBS


class LocalChild:
    """Does jobs in this process, which is faster, by the code of a child process.

    Attributes:
        trouble: Called before and after each job; it may raise the error of a killed process, or write to the table.
    """

    trouble = None

    def __init__(self, memory=None, timeout_s=None):
        self.memory, self.timeout_s = memory, timeout_s

    def run(self, job, request):
        request = json.loads(json.dumps(request))
        if LocalChild.trouble:
            LocalChild.trouble("before", job)
        try:
            result = json.loads(json.dumps(JOBS[job](request)))
        except BaseException as error:
            raise ChildFailedError(f"{type(error).__name__}: {error}", is_error=True) from error
        if LocalChild.trouble:
            LocalChild.trouble("after", job)
        return result

    def close(self):
        pass


def use_children(patch, kind):
    """Let all work on indices be done by a kind of children."""
    for module in (declared, indices, cover):
        patch.setattr(module, "ChildProcess", kind)
