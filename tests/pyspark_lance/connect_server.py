"""A Spark Connect server of its own, for clients in other environments: `python connect_server.py PORT`.

Prints `ready` once it serves, and ends with its standard input.
"""

import os
import sys

from pyspark_lance import local_session


def config(port):
    """Spark's settings of a server on a port."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.port": port,
        "spark.connect.grpc.binding.address": "127.0.0.1",
        # As Spark sets them for a server that it starts by itself.
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }


if __name__ == "__main__":
    session = local_session("local[2]", config=config(sys.argv[1]))
    session.sparkContext.setLogLevel("OFF")
    print("ready", flush=True)
    sys.stdin.read()
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    os._exit(0)
