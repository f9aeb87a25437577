"""`LanceSparkResource`: the one Spark session of a process, for assets and for `LanceIOManager`.

    master                     the session
    ------                     -----------
    None, the default          the existing session of the process, else a new one on this machine, `local[*]`
    local[n], local[*]         on this machine
    spark://host:port, yarn    on a cluster, whose executors run the Python at the same path as here, or `python`
    sc://host:port             of a Spark Connect server on another machine: no Java is needed here

A process has at most one JVM. A session that exists already is used, whoever started it. If it has another kind or
another master than the resource asks for, an error is raised: the session is not silently replaced.
"""

import os
import threading
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
from pydantic import Field

from lance_dagster.tables.arguments import CheckedArguments
from pyspark_lance.releases import require_feature

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
        description="local[n], spark://host:port or sc://host:port; by default the existing session, else local[*].",
    )
    connect: bool = Field(
        default=False, description="With a local master: start a Spark Connect server, and use it as a client."
    )
    app_name: str = Field(default="lance", description="Name that Spark's UI shows.")
    config: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Further settings of Spark.",
        json_schema_extra={"dagster__is_secret": True},
    )
    python: str | None = Field(
        default=None, description="The Python that executors run; by default the Python of this process."
    )

    def get_session(self) -> "SparkSession":
        """The session.

        Raises:
            JavaMissingError: No Java is installed.
            DagsterInvariantViolationError: The process has a session of another kind or of another master.
            DagsterInvalidDefinitionError: Settings cannot be combined.
            UnsupportedError: The server is one of Spark Connect, and the installed Spark is older than 4.0.
        """
        if self._is_remote and (self.connect or self.python is not None):
            named = "connect" if self.connect else "python"
            raise dg.DagsterInvalidDefinitionError(
                f"LanceSparkResource: {named} has no effect on the Spark Connect server {self.master}; leave it out. "
                "PYSPARK_PYTHON in the server's environment is the Python of its executors"
            )
        if self.connect and self.master is not None and not self.master.startswith(_LOCAL):
            raise dg.DagsterInvalidDefinitionError(
                f"LanceSparkResource: connect starts a server on this machine, and master is {self.master!r}; use a "
                "local master, or name a server elsewhere by sc://host:port"
            )
        if self._is_remote:
            require_feature("a session of Spark Connect")
        with _starting:
            session = self._find()
            if session is None:
                return self._start()
            self._configure(session)
            return session

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
        """The existing session of this process, checked against the settings; None if there is none."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        wants_connect = self._is_remote or self.connect
        connect_mode = "SPARK_CONNECT_MODE_ENABLED" in os.environ  # Spark sets it with the first client session
        context: Any = SparkContext._active_spark_context  # noqa: SLF001 - the public ways would start one
        if context is not None and not connect_mode:
            self._check_kind(has_connect=False, wants_connect=wants_connect)
            self._check_master(context.master)
            return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
        session = SparkSession.getActiveSession() or (_default_client() if connect_mode else None)
        if session is not None and (self.master is not None or self.connect):
            self._check_kind(has_connect=True, wants_connect=wants_connect)
            self._check_server(session)
        return session

    def _check_kind(self, *, has_connect: bool, wants_connect: bool) -> None:
        if has_connect != wants_connect:
            kinds = ("a classic session", "a Spark Connect session")
            raise dg.DagsterInvariantViolationError(
                f"LanceSparkResource: this process has {kinds[has_connect]}, and {kinds[wants_connect]} is asked for; "
                "a process can have only one kind. Give all resources of a code location the same master"
            )

    def _check_master(self, master: str) -> None:
        if self.master is not None and self.master != master:
            raise dg.DagsterInvariantViolationError(
                f"LanceSparkResource: this process has a Spark session on {master}, and {self.master} is asked for; a "
                "process can have only one master. Give all resources of a code location the same master, or none"
            )

    def _check_server(self, session: Any) -> None:
        if not self._is_remote:
            return
        from pyspark.sql.connect.client import DefaultChannelBuilder

        requested_endpoint = DefaultChannelBuilder(str(self.master)).endpoint
        endpoint = getattr(session.client._builder, "endpoint", None)  # noqa: SLF001 - the public name lacks the port
        if endpoint not in (None, requested_endpoint):
            raise dg.DagsterInvariantViolationError(
                f"LanceSparkResource: this process has a session on the Spark Connect server {endpoint}, and "
                f"{requested_endpoint} is asked for. Give all resources of a code location the same master, or none"
            )

    def _configure(self, session: "SparkSession") -> None:
        """Set the configuration in an existing session, and warn of settings that are fixed once a session runs."""
        fixed = []
        for key, value in self.config.items():
            if session.conf.get(key, None) == value:
                continue
            if session.conf.isModifiable(key):
                session.conf.set(key, value)
            else:
                fixed.append(key)
        if fixed:
            dg.get_dagster_logger().warning(
                "LanceSparkResource: %s cannot be set any more, as this process already has a session; give the first "
                "resource of the process this config",
                ", ".join(fixed),
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
    """The Connect session of the process; `getActiveSession` returns only a session that its own thread started."""
    from pyspark.sql.connect.session import SparkSession as ClientSession

    require_feature("a session of Spark Connect")
    return ClientSession._get_default_session()  # noqa: SLF001 - the public ways would start one
