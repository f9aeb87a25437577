"""What `test_two_applications.py` runs: `python application_driver.py works FOLDER NAME SECONDS`, `ends FOLDER STEP STATEMENT`, or
`on_s3 FOLDER ROOT` with the storage options in STORAGE_OPTIONS.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

KEYS = 20


def session(**config: str):
    """A session with one core."""
    import pyspark_lance

    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", **config}
    spark = pyspark_lance.local_session("local[1]", config=settings)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def works(folder: str, name: str, seconds: str) -> None:
    """Merge and append until the time is over, and report what was done."""
    import pyspark_lance
    from lance_core.errors import CommitConflictError

    spark = session()
    pyspark_lance.register_catalog(spark, "lake", folder)
    drawn = random.Random(name)
    done = {"merges": 0, "appends": 0, "conflicts": 0}
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        try:
            if drawn.random() < 0.6:
                first = drawn.randrange(KEYS - 5)
                pyspark_lance.sql(
                    spark,
                    "MERGE INTO lake.counted AS t USING (SELECT id AS key FROM range(:first, :last)) AS s ON t.key = s.key"
                    " WHEN MATCHED THEN UPDATE SET n = t.n + 1 WHEN NOT MATCHED THEN INSERT (key, n) VALUES (s.key, 1)",
                    first=first,
                    last=first + 5,
                )
                done["merges"] += 1
            else:
                statement = "INSERT INTO lake.appended VALUES (:name, :number)"
                pyspark_lance.sql(spark, statement, name=name, number=done["appends"])
                done["appends"] += 1
        except CommitConflictError:
            done["conflicts"] += 1
    spark.stop()
    print(json.dumps(done))


def ends(folder: str, step: str, statement: str) -> None:
    """Run a statement; at a step of the driver's work in the folder its process ends, or the steps are counted."""
    import pyspark_lance

    spark = session()
    pyspark_lance.register_catalog(spark, "lake", folder)
    pyspark_lance.sql(spark, "SELECT * FROM lake.counted").collect()  # what is loaded is loaded
    steps = [0]

    def look(event: str, arguments: tuple[object, ...]) -> None:
        if event not in ("open", "os.link", "os.rename", "os.remove", "os.mkdir") or not arguments:
            return
        is_read = event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if is_read or not any(isinstance(one, str) and one.startswith(folder) for one in arguments):
            return
        steps[0] += 1
        if steps[0] == int(step):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    pyspark_lance.sql(spark, statement).collect()
    print(steps[0])
    spark.stop()


def on_s3(folder: str, root: str) -> None:
    """Statements over tables in a bucket; whatever Spark shows and writes is printed or kept in the folder."""
    from urllib.request import urlopen

    import pyspark_lance

    log = Path(folder, "events").as_uri()
    settings = {"enabled": "true", "dir": log, "compress": "false"}
    config = {f"spark.eventLog.{key}": value for key, value in settings.items()}
    spark = session(**config, **{"spark.ui.enabled": "true", "spark.ui.port": "0"})
    options = json.loads(os.environ.pop("STORAGE_OPTIONS"))
    pyspark_lance.register_catalog(spark, "lake", root, storage_options=options)

    def sql(statement: str) -> list[tuple[object, ...]]:
        found = [tuple(row) for row in pyspark_lance.sql(spark, statement).collect()]
        print(statement, found)
        return found

    sql("CREATE TABLE lake.a.t AS SELECT id, id % 3 AS day FROM range(100)")
    sql("INSERT INTO lake.a.t SELECT id + 100, 9 FROM lake.a.t WHERE id < 10")
    assert sql("UPDATE lake.a.t SET day = 7 WHERE id IN (SELECT max(id) FROM lake.a.t)") == [(1,)]
    assert sql(
        "MERGE INTO lake.a.t AS t USING (SELECT id FROM range(105, 115)) AS s ON t.id = s.id"
        " WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    ) == [(10, 0, 5, 5)]
    assert sql("SELECT count(*), count(day) FROM lake.a.t") == [(110, 105)]
    assert sql("SELECT count(*) FROM lake.a.t VERSION AS OF 1") == [(100,)]
    for statement in ("DESCRIBE EXTENDED", "DESCRIBE HISTORY", "DESCRIBE DETAIL", "SHOW CREATE TABLE"):
        sql(f"{statement} lake.a.t")
    sql("CALL lake.system.compact('a.t')")
    sql("SHOW TABLES IN lake")
    for mode in ("extended", "codegen", "cost", "formatted"):
        sql(f"EXPLAIN {mode.upper()} SELECT * FROM lake.a.t WHERE day = 2")
    for wrong in ("SELECT nope FROM lake.a.t", "SELECT * FROM lake.a.none", "UPDATE lake.a.t SET day = 'x'"):
        try:
            sql(wrong)
        except Exception as error:  # noqa: BLE001 - its text is looked at
            print(repr(error))
        else:
            raise AssertionError(wrong)
    print(spark.sparkContext.getConf().getAll())
    for page in ("environment/", "SQL/", "jobs/", "stages/", "SQL/execution/?id=1", "stages/stage/?id=1&attempt=0"):
        with urlopen(f"{spark.sparkContext.uiWebUrl}/{page}", timeout=60) as answer:
            print(answer.read().decode())
    spark.stop()


if __name__ == "__main__":
    {"works": works, "ends": ends, "on_s3": on_s3}[sys.argv[1]](*sys.argv[2:])
