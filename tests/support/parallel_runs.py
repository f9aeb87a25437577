"""Runs at the same time, each with a Dagster instance of its own."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import dagster as dg


def in_parallel(lake, *calls):
    """Call functions of a lake in threads; what they return. Each has a Dagster instance of its own."""

    def call(function):
        with dg.DagsterInstance.ephemeral() as instance:
            return function(replace(lake, instance=instance))

    with ThreadPoolExecutor(max_workers=len(calls)) as pool:
        return [future.result(timeout=200) for future in [pool.submit(call, function) for function in calls]]
