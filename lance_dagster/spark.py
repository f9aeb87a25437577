"""`LanceSparkResource`: the one Spark session of a process, for assets and for `LanceIOManager`.

    master                     what it is
    ------                     ----------
    nothing, the default       the session that the process has already, else one of this machine, `local[*]`
    local[n], local[*]         this machine
    spark://host:port, yarn    a cluster: executors run the Python that is at the same path there, or `python`
    sc://host:port             a Spark Connect server elsewhere: no Java here

A process has one JVM at most. A session that exists already is used, whoever started it. If it is of another
kind or of another master than the resource names, that is an error: the session is not silently exchanged.
"""

import os
import threading
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from lance_dagster.tables.arguments import CheckedArguments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LanceSparkResource"]

_REMOTE: Final = "sc://"
_LOCAL: Final = "local"
_starting = threading.Lock()


class LanceSparkResource(dg.ConfigurableResource["LanceSparkResource"], CheckedArguments):
    """A Spark session that starts when it is first used, and is never started twice.

    Example:
        ```python
        @dg.asset
        def events(spark: LanceSparkResource) -> DataFrame:
            return spark.session.read.parquet("s3a://raw/events")

        defs = dg.Definitions([events], resources={"spark": LanceSparkResource(), "io_manager": LanceIOManager(...)})
        ```
    """

    master: str | None = Field(
        default=None,
        description="local[n], spark://host:port or sc://host:port; by default the session that is there, or local[*].",
    )
    connect: bool = Field(
        default=False, description="With a local master: start a Spark Connect server and be its client."
    )
    app_name: str = Field(default="lance", description="Name that Spark's UI shows.")
    config: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Further settings of Spark.",
        json_schema_extra={"dagster__is_secret": True},
    )
    python: str | None = Field(
        default=None, description="The Python that executors run; the one that runs this process if not given."
    )

    def get_session(self) -> "SparkSession":
        """The session.

        Raises:
            JavaMissingError: No Java is installed.
            DagsterInvariantViolationError: The process has a session of another kind or of another master.
            DagsterInvalidDefinitionError: Settings contradict each other.
        """
        if self._is_remote and (self.connect or self.python is not None):
            named = "connect" if self.connect else "python"
            raise dg.DagsterInvalidDefinitionError(
                f"LanceSparkResource: {named} has no effect on the server {self.master}: a Connect server decides "
                "itself what its executors run (PYSPARK_PYTHON in its environment)"
            )
        if self.connect and self.master is not None and not self.master.startswith(_LOCAL):
            raise dg.DagsterInvalidDefinitionError(
                f"LanceSparkResource: connect starts a server of this machine, which {self.master!r} is not; name a "
                "server elsewhere by sc://host:port"
            )
        with _starting:
            return self._find() or self._start()

    @property
    def session(self) -> "SparkSession":
        """The session; see `get_session`."""
        return self.get_session()

    @property
    def spark_session(self) -> "SparkSession":
        """The session, under the name that Dagster's own Spark resources have."""
        return self.get_session()

    @property
    def _is_remote(self) -> bool:
        return self.master is not None and self.master.startswith(_REMOTE)

    def _find(self) -> "SparkSession | None":
        """The session that this process has, if it may be used."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        wants_connect = self._is_remote or self.connect
        connect_mode = "SPARK_CONNECT_MODE_ENABLED" in os.environ  # Spark sets it with the first client session
        context: Any = SparkContext._active_spark_context  # noqa: SLF001 - the public ways would start one
        if context is not None and not connect_mode:
            self._check_kind(has_connect=False, wants_connect=wants_connect)
            self._check_master(context.master)
            return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        found = SparkSession.getActiveSession() or (_default_client() if connect_mode else None)
        if found is not None and (self.master is not None or self.connect):
            self._check_kind(has_connect=True, wants_connect=wants_connect)
            self._check_server(found)
        return found

    def _check_kind(self, *, has_connect: bool, wants_connect: bool) -> None:
        if has_connect != wants_connect:
            kinds = ("a classic session", "a Spark Connect session")
            raise dg.DagsterInvariantViolationError(
                f"LanceSparkResource: this process has {kinds[has_connect]}, and {kinds[wants_connect]} is asked for; "
                "a process can have one kind only"
            )

    def _check_master(self, master: str) -> None:
        if self.master is not None and self.master != master:
            raise dg.DagsterInvariantViolationError(
                f"LanceSparkResource: this process has a Spark session on {master}, and {self.master} is asked for; a "
                "process can have one Spark only. Give all resources of a code location the same master, or none."
            )

    def _check_server(self, session: Any) -> None:
        if not self._is_remote:
            return
        from pyspark.sql.connect.client import DefaultChannelBuilder

        wanted = DefaultChannelBuilder(str(self.master)).endpoint
        found = getattr(session.client._builder, "endpoint", None)  # noqa: SLF001 - the public name lacks the port
        if found not in (None, wanted):
            raise dg.DagsterInvariantViolationError(
                f"LanceSparkResource: this process has a session on the Spark Connect server {found}, and {wanted} is "
                "asked for. Give all resources of a code location the same master, or none."
            )

    def _start(self) -> "SparkSession":
        import pyspark_lance  # noqa: PLC0415 - optional

        if self.python is not None:
            os.environ["PYSPARK_PYTHON"] = self.python
        if self.master is None or self.master.startswith(_LOCAL):
            return pyspark_lance.local_session(
                self.master or "local[*]", app_name=self.app_name, config=self.config, connect=self.connect
            )
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.appName(self.app_name)
        for key, value in self.config.items():
            builder = builder.config(key, value)
        if self._is_remote:
            return builder.remote(self.master).getOrCreate()
        pyspark_lance.ensure_java()
        pyspark_lance.ensure_python()
        return builder.master(self.master).getOrCreate()


def _default_client() -> Any:
    """The Connect session that another thread has started; `getActiveSession` knows those of its own thread only."""
    from pyspark.sql.connect.session import SparkSession as ClientSession

    return ClientSession._get_default_session()  # noqa: SLF001 - the public ways would start one
