"""Call a function on batches of rows: in this process, in worker processes, or as coroutines; batches are bisected.

    plain function       in this process, one batch after the other
    processes=n          in n forked processes; one that takes longer than `timeout` is killed and replaced
    async function       `concurrency` batches at once in one event loop

A batch on which the function fails is divided until single rows fail. Results of other types or numbers of rows are
errors of the function, and end the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import multiprocessing
import os
import threading
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final, TypeVar

import pyarrow as pa

from lance_core.errors import InvalidInputError, LanceError, SchemaError, UnsupportedError
from lance_core.extension_types import to_polars
from lance_core.threads import ThreadPool
from lance_core.verbs.columns.batch_udf import as_batch
from lance_core.verbs.columns.compute.conform import conform_values
from lance_core.verbs.files.python_rows import check_polars

_MOST_ERROR: Final = 2000
"""Characters of an error that are kept."""

Item = TypeVar("Item")


class CallError(Exception):
    """The function failed on a batch; the text is that of its error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """How a function is called.

    Attributes:
        function: Takes a record batch, or a pandas or polars frame if its first parameter says so, and the object of
            `setup` if that is given; returns as many rows, as a record batch, a table, a frame, or the array of a
            single column. It may be a coroutine function.
        columns: The columns that it returns.
        setup: Makes the second argument, once per process.
        processes: Worker processes; 0 for this process.
        concurrency: Calls of a coroutine function at once.
        timeout_s: Seconds after which a call counts as one that failed; None for no limit.
    """

    function: Callable[..., Any]
    columns: pa.Schema
    setup: Callable[[], Any] | None = None
    processes: int = 0
    concurrency: int = 1
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.processes < 0 or self.concurrency < 1 or (self.timeout_s is not None and self.timeout_s <= 0):
            raise InvalidInputError("processes must be at least 0, concurrency at least 1, timeout above 0")
        if self.processes and self.is_async:
            raise InvalidInputError("a coroutine function has concurrency, and no processes")
        if self.concurrency > 1 and not self.is_async:
            raise InvalidInputError("only a coroutine function (async def) has concurrency; processes=n runs n calls")
        if (self.processes or self.timeout_s) and not self.is_async and not hasattr(os, "fork"):
            raise UnsupportedError("processes and timeout need a system that forks processes")

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of a call on a batch.

    Attributes:
        values: The columns, null in rows on which the function failed.
        errors: The errors of these rows, by their number in the batch.
    """

    values: pa.RecordBatch
    errors: dict[int, str]


@dataclass(slots=True)
class Caller:
    """Calls a function on batches; created by `open_caller`.

    Attributes:
        num_calls: Calls so far, those of halves included.
        num_rows: The rows of these calls.
    """

    calls: Calls
    width: int
    _call: Callable[[pa.RecordBatch], pa.RecordBatch]
    _pool: ThreadPool | None
    num_calls: int = 0
    num_rows: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """Make no further call: threads that divide a batch stop."""
        self._is_closed.set()

    def in_order(self, batches: Iterable[tuple[Item, pa.RecordBatch]]) -> Iterator[tuple[Item, CallResult]]:
        """Yield each item with the result of its batch; as many batches as `width` are called at once."""
        waiting: deque[tuple[Item, Future[CallResult]]] = deque()
        for item, batch in batches:
            waiting.append((item, self._submit(batch)))
            if len(waiting) >= self.width:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()

    def _submit(self, batch: pa.RecordBatch) -> Future[CallResult]:
        if self._pool is not None:
            return self._pool.submit(self._bisect, batch)
        future: Future[CallResult] = Future()
        future.set_result(self._bisect(batch))
        return future

    def _bisect(self, batch: pa.RecordBatch) -> CallResult:
        if self._is_closed.is_set():
            raise CancelledError
        with self._lock:
            self.num_calls += 1
            self.num_rows += batch.num_rows
        try:
            return CallResult(values=self._call(batch), errors={})
        except CallError as error:
            if batch.num_rows == 1:
                return CallResult(values=_make_nulls(self.calls.columns, 1), errors={0: str(error)})
        half = batch.num_rows // 2
        left, right = self._bisect(batch.slice(0, half)), self._bisect(batch.slice(half))
        joined = pa.Table.from_batches([left.values, right.values]).combine_chunks().to_batches()[0]
        return CallResult(values=joined, errors=left.errors | {half + row: text for row, text in right.errors.items()})


@contextlib.contextmanager
def open_caller(calls: Calls) -> Iterator[Caller]:
    """Start what the calls need, and stop it afterwards; calls that go on then are canceled, in processes killed."""
    if calls.is_async:
        with _threads(calls.concurrency) as pool, _event_loop() as loop:
            function = _prepare(calls)

            def call(batch: pa.RecordBatch) -> pa.RecordBatch:
                with _as_call_error():
                    result = _await(loop, function(batch), calls.timeout_s)
                return _check_result(result, batch.num_rows, calls.columns)

            with contextlib.closing(Caller(calls, calls.concurrency, call, pool)) as caller:
                yield caller
    elif calls.processes or calls.timeout_s is not None:
        processes = max(calls.processes, 1)
        with contextlib.ExitStack() as stack:
            local, workers, is_over = threading.local(), list[_Worker](), threading.Event()

            def end_workers() -> None:
                is_over.set()
                for worker in workers:
                    worker.end(for_good=True)

            stack.callback(end_workers)  # once no thread is left that could fork another one
            pool = stack.enter_context(_threads(processes))
            stack.callback(end_workers)  # so that threads do not wait for them

            def call(batch: pa.RecordBatch) -> pa.RecordBatch:
                if not hasattr(local, "worker"):
                    local.worker = _Worker(calls)
                    workers.append(local.worker)
                if is_over.is_set():  # `end_workers` may have come before the worker
                    local.worker.end(for_good=True)
                result: pa.RecordBatch = local.worker.call(batch)
                return result

            yield stack.enter_context(contextlib.closing(Caller(calls, processes + 1, call, pool)))
    else:
        plain = _prepare(calls)

        def call(batch: pa.RecordBatch) -> pa.RecordBatch:
            with _as_call_error():
                result = plain(batch)
            return _check_result(result, batch.num_rows, calls.columns)

        yield Caller(calls, 1, call, None)


_shared: Final[dict[str, tuple[contextlib.ExitStack, Caller]]] = {}


def share_caller(run: str, calls: Calls) -> Caller:
    """The caller of a run in this process, which its tasks use one after the other; that of another run is closed."""
    if run not in _shared:
        for stack, _ in _shared.values():
            stack.close()
        _shared.clear()
        stack = contextlib.ExitStack()
        _shared[run] = stack, stack.enter_context(open_caller(calls))
    return _shared[run][1]


@contextlib.contextmanager
def _threads(number: int) -> Iterator[ThreadPool]:
    pool = ThreadPool(number, thread_name_prefix="lance-call")
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _event_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="lance-calls", daemon=True)
    thread.start()
    try:
        yield loop
    finally:

        async def cancel() -> None:
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(cancel())  # in this thread, with what other threads have scheduled meanwhile
        loop.close()


def _await(loop: asyncio.AbstractEventLoop, awaited: Awaitable[Any], timeout_s: float | None) -> Any:
    """The result of what is awaited in the thread of a loop, which an error that ends programs must not end."""

    async def catch_exit() -> Any:
        try:
            return await awaited
        except (KeyboardInterrupt, SystemExit) as error:
            return error

    result = asyncio.run_coroutine_threadsafe(asyncio.wait_for(catch_exit(), timeout_s), loop).result()
    if isinstance(result, KeyboardInterrupt | SystemExit):
        raise result
    return result


@contextlib.contextmanager
def _as_call_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise CallError(_describe(error)) from error


def _describe(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:_MOST_ERROR]


def _prepare(calls: Calls) -> Callable[[pa.RecordBatch], Any]:
    """The function of a record batch: frames and the object of `setup` are made as its parameters ask for them."""
    try:
        more = () if calls.setup is None else (calls.setup(),)
    except (Exception, SystemExit) as error:
        raise InvalidInputError(f"setup failed: {_describe(error)}") from error
    annotation = ""
    with contextlib.suppress(ValueError):  # some functions that are written in C have no signature
        parameters = list(inspect.signature(calls.function, eval_str=False).parameters.values())
        annotation = str(parameters[0].annotation) if parameters else ""
    if "Series" in annotation:
        raise InvalidInputError(
            "the first parameter of the function gets all inputs: annotate it as a DataFrame, not as a Series, and "
            "take the column from it"
        )
    if "pandas" in annotation or annotation.endswith("pd.DataFrame"):
        return lambda batch: calls.function(batch.to_pandas(), *more)
    if "polars" in annotation or annotation.endswith("pl.DataFrame"):
        return lambda batch: calls.function(to_polars(batch), *more)
    return lambda batch: calls.function(batch, *more)


def _check_result(result: Any, num_rows: int, columns: pa.Schema) -> pa.RecordBatch:
    """The result of a call as a batch of the columns; a Series is the array of a single one.

    Raises:
        InvalidInputError: The result has another number of rows, or is no batch.
        SchemaError: The result lacks a column, or has one more, or values of another type.
    """
    library = type(result).__module__.split(".")[0]
    if library == "polars":
        check_polars(result)
        result = result.to_arrow()
    elif library == "pandas" and type(result).__name__ == "Series":
        result = pa.array(result, from_pandas=True)
    if isinstance(result, pa.Array | pa.ChunkedArray) and len(columns) == 1:
        array = result.combine_chunks() if isinstance(result, pa.ChunkedArray) else result
        result = pa.RecordBatch.from_arrays([array], columns.names)
    batch = as_batch(result)
    if batch.num_rows != num_rows:
        raise InvalidInputError(f"the function returned {batch.num_rows} rows for {num_rows}")
    if sorted(batch.schema.names) != sorted(columns.names):
        raise SchemaError(f"the function returned the columns {batch.schema.names}, not {columns.names}")
    arrays = [conform_values(batch.column(field.name), field) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.remove_metadata())


def _make_nulls(columns: pa.Schema, num_rows: int) -> pa.RecordBatch:
    arrays = [pa.nulls(num_rows, field.type) for field in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=columns.remove_metadata())


_fork_lock: Final = threading.Lock()
_parent_ends: Final[set[Connection]] = set()
"""The ends of the pipes of all workers in this process, which each new worker inherits."""


class _Worker:
    """A forked process that calls the function; a new one is forked after a call that took too long, or killed it."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._process: Any = None
        self._is_over = self._is_ready = False
        self._lock = threading.Lock()

    def call(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with self._lock:
            if self._is_over:
                raise CancelledError
            if self._process is None:
                self._begin()
            process = self._process
        if not self._is_ready:
            self._await_setup(process)
        try:
            self._connection.send_bytes(_to_bytes(batch))
            if not self._connection.poll(self._calls.timeout_s):
                self.end()
                raise CallError(f"TimeoutError: the call took longer than {self._calls.timeout_s} s")
            kind, data = self._connection.recv()
        except (EOFError, OSError) as error:
            process.join()
            self.end()
            raise CallError(f"the worker process ended with exit code {process.exitcode}") from error
        if kind == "failed":
            raise CallError(data)
        if kind == "wrong":
            raise data
        return pa.ipc.open_stream(data).read_next_batch()

    def _await_setup(self, process: Any) -> None:
        """Wait until a new process can call the function; `timeout` is for calls, and does not count here.

        Raises:
            InvalidInputError: `setup` failed, or ended the process.
        """
        try:
            kind, error = self._connection.recv()
        except (EOFError, OSError) as ended:
            process.join()
            self.end()
            if self._is_over:
                raise CancelledError from ended
            raise InvalidInputError(f"setup failed: the process ended with exit code {process.exitcode}") from ended
        if kind == "wrong":
            raise error
        self._is_ready = True

    def _begin(self) -> None:
        context = multiprocessing.get_context("fork")
        with _fork_lock:  # no other worker is forked while an end of this pipe is open that it would not close
            self._connection, worker_end = context.Pipe()
            _parent_ends.add(self._connection)
            process = context.Process(target=_work, args=(self._calls, worker_end), daemon=True)
            process.start()
            worker_end.close()
        self._process = process

    def end(self, *, for_good: bool = False) -> None:
        """Kill the process; the thread that waits for it, and the one that ends the run, may both do so."""
        with self._lock:
            self._is_over |= for_good
            process, self._process, self._is_ready = self._process, None, False
            if process is not None:
                process.kill()
                process.join()
                _parent_ends.discard(self._connection)
                self._connection.close()


def _work(calls: Calls, connection: Connection) -> None:
    """Answer calls until the connection is closed, as when the parent is killed."""
    for parent_end in _parent_ends:  # also those of workers that were forked before
        parent_end.close()
    try:
        function = _prepare(calls)
    except LanceError as error:
        connection.send(("wrong", error))
        return
    connection.send(("ready", None))
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            batch = pa.ipc.open_stream(connection.recv_bytes()).read_next_batch()
            answer: tuple[str, Any]
            try:
                with _as_call_error():
                    result = function(batch)
                answer = "done", _to_bytes(_check_result(result, batch.num_rows, calls.columns))
            except CallError as error:
                answer = "failed", str(error)
            except SystemExit as error:
                answer = "failed", _describe(error)
            except LanceError as error:
                answer = "wrong", error
            connection.send(answer)


def _to_bytes(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
