"""pylance's directory namespace in tests: creates, declares and drops tables, and lists them; and as a service."""

import uuid
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from lance.namespace import DirectoryNamespace
from lance_namespace import DeregisterTableRequest
from lance_namespace.errors import LanceNamespaceError

import lance_core
from lance_core.commit.loop import LISTENERS, on_commit


class Namespace:
    """pylance's directory namespace, by ids that are joined by dots, or lists of their parts."""

    def __init__(self, root, **properties):
        self.root = root
        if "://" not in root:
            Path(root).mkdir(exist_ok=True)
        self.options = {name.removeprefix("storage."): value for name, value in properties.items() if "." in name}
        self.inner = DirectoryNamespace(**{"root": root, "manifest_enabled": "true"} | properties)

    def call(self, verb, name, *data, **more):
        import lance_namespace

        request = "".join(part.capitalize() for part in verb.split("_")) + "Request"
        parts = name if isinstance(name, list) else name.split(".") if name else []
        return getattr(self.inner, verb)(getattr(lance_namespace, request)(id=parts, **more), *data)

    def create(self, name, value):
        rows, sink = pa.table({"a": [value]}), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return self.call("create_table", name, sink.getvalue().to_pybytes())

    def list_again(self, space, **locations):
        """Give ids new locations, or take them away for None, as a client does that renames and swaps tables."""
        for name in locations.keys() & set(self.tables(space)):
            self.call("deregister_table", f"{space}.{name}")
        for name, location in locations.items():
            if location is not None:
                self.call("register_table", f"{space}.{name}", location=location)

    def append(self, lance, name, value):
        location = self.call("describe_table", name).location
        lance.write_dataset(pa.table({"a": [value]}), location, mode="append", storage_options=self.options or None)

    def tables(self, name=""):
        return self.call("list_tables", name).tables

    def namespaces(self, name=""):
        return self.call("list_namespaces", name).namespaces

    def rows(self, lance, name):
        location = self.call("describe_table", name).location
        return lance.dataset(location, storage_options=self.options or None).to_table()["a"].to_pylist()

    def walk(self, name=""):
        """The ids of all tables, joined by dots, in nested namespaces too."""
        inside = f"{name}." if name else ""
        below = [table for space in self.namespaces(name) for table in self.walk(inside + space)]
        return sorted([*(inside + table for table in self.tables(name)), *below])

    def listed(self):
        table = lance_core.dataset(f"{self.root}/__manifest", storage_options=self.options or None)
        return {row["object_id"]: row["location"] for row in table.to_table().to_pylist()}


def write_dated(root, location, times):
    """A table with one row of each time in fragments of their own."""
    for number, at in enumerate(times):
        rows = pa.table({"n": [number], "at": [at]})
        lance_core.write_dataset(rows, f"{root}/{location}", mode="append" if number else "overwrite")


class FaultyNamespace(DirectoryNamespace):
    """pylance's directory namespace, which gives the table `blank` no location, and manages the versions of `managed`."""

    def __init__(self, root, **faults):
        super().__init__(root=root, manifest_enabled="true")
        self.faults = {tuple(name.split("/")): fault for fault, name in faults.items()}

    def describe_table(self, request):
        response = super().describe_table(request)
        fault = self.faults.get(tuple(request.id))
        changes = {"blank": {"location": ""}, "managed": {"managed_versioning": True}}
        return response.model_copy(update=changes.get(fault, {}))


class FleetingNamespace(DirectoryNamespace):
    """pylance's directory namespace, which deregisters each table after it has been asked for it once."""

    def __init__(self, root):
        super().__init__(root=root, manifest_enabled="true")

    def describe_table(self, request):
        response = super().describe_table(request)
        self.deregister_table(DeregisterTableRequest(id=request.id))
        return response


class CodelessNamespace(DirectoryNamespace):
    """pylance's directory namespace with ids of two parts, whose errors have no codes, as in lance-namespace-impls."""

    def __init__(self, root):
        super().__init__(root=root, manifest_enabled="true")

    def list_tables(self, request):
        if len(request.id) != 1:
            raise ValueError("exactly one level is needed")
        return super().list_tables(request)

    def list_namespaces(self, request):
        if request.id:
            raise type("InvalidInputException", (Exception,), {})("there are no levels below")
        return super().list_namespaces(request)

    def describe_table(self, request):
        try:
            return super().describe_table(request)
        except LanceNamespaceError:
            raise RuntimeError(f"Table does not exist: {'.'.join(request.id)}") from None

    def create_namespace(self, request):
        try:
            return super().create_namespace(request)
        except LanceNamespaceError:
            raise type("NamespaceAlreadyExistsException", (Exception,), {})("it is there") from None


@contextmanager
def after_commit(uri, action, number=1):
    """Do something once, directly after this process has made a commit to a table.

    Args:
        uri: The table.
        action: What others do then, such as to swap ids.
        number: The commit, from 1.
    """
    commits, key = iter(range(1, 100)), f"test.{uuid.uuid4()}"
    lance_core.dataset(uri).update_config({key: "watched"})
    on_commit(key, lambda *_: next(commits) == number and action())
    try:
        yield
    finally:
        del LISTENERS[key]
    assert next(commits) > number


@contextmanager
def rest_service(root, **properties):
    """The properties of a REST namespace, which pylance serves on loopback in front of the directory namespace of a root.

    Args:
        root: The root.
        properties: Further properties of the directory namespace.
    """
    from lance.namespace import RestAdapter

    with RestAdapter("dir", {"root": str(root)} | properties, port=0) as adapter:
        yield {"impl": "rest", "uri": f"http://127.0.0.1:{adapter.port}"}
