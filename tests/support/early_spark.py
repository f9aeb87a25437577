"""What tests use of Spark 4 and Spark 3.5 lacks: frames from Arrow tables, tables from frames, names of errors."""

from pyspark_lance.releases import is_at_least


def add_methods():
    """Give classes of Spark 3.5 `toArrow`, `createDataFrame` of an Arrow table, and `getCondition`."""
    import pyarrow as pa
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame, SparkSession

    from pyspark_lance.engine.jobs import collect_arrow
    from pyspark_lance.types.spark_types import spark_schema

    create = SparkSession.createDataFrame

    def create_frame(session, data, schema=None, *args, **kwargs):
        if not isinstance(data, pa.Table):
            return create(session, data, schema, *args, **kwargs)
        rows = [tuple(row.values()) for row in data.to_pylist()]
        return create(session, rows, schema or spark_schema(data.schema))

    SparkSession.createDataFrame = create_frame
    PySparkException.getCondition = lambda error: error.getErrorClass()
    DataFrame.toArrow = collect_arrow


LACKING = {
    (4, 0): (
        "DATA_SOURCE_NOT_FOUND",
        'format("lance") needs Spark 4.0',
        "or near 'UTF8_",
        "near 'collate'",
        "near 'COLLATE'",
        "column 'c': COLLATE needs Spark 4.0",
        "`parse_json`",
        "a query with pipes",
    ),
    (4, 1): (
        "does not hand out Arrow batches",
        "writeStream.format",
        'type "TIME"',
        "UNSUPPORTED_DATATYPE",
        "a column of TIME",
        "'TimeType'",
    ),
}
"""By release of Spark, what errors say about that which earlier ones lack."""


def lacks(error):
    """Whether a test failed because this Spark is older than what the test is about."""
    return any(word in str(error) for release, words in LACKING.items() if not is_at_least(release) for word in words)
