"""A Spark Connect server of its own, for clients in other environments: `python connect_server.py PORT`.

Prints `ready` once it serves, and ends with its standard input.
"""

import os
import sys

from pyspark_lance import local_session

CONFIG = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.port": sys.argv[1],
    "spark.connect.grpc.binding.address": "127.0.0.1",
    # As Spark sets them for a server that it starts by itself.
    "spark.sql.artifact.isolation.enabled": "true",
    "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}

session = local_session("local[2]", config=CONFIG)
session.sparkContext.setLogLevel("OFF")
print("ready", flush=True)
sys.stdin.read()
gateway = session.sparkContext._gateway
session.stop()
gateway.shutdown()
os._exit(0)
