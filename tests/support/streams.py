"""What Spark asks of a source that streams."""

from pyspark_lance.datasource.source import DefaultSource


class Query:
    """What Spark does with a source: load, then offsets and partitions of one batch after the other."""

    def __init__(self, uri, **options):
        self.options = {"path": str(uri), **options}
        self.start = None
        self.rows = []
        self.load()

    def load(self):
        """Load the table, and begin where the checkpoint is."""
        source = DefaultSource(self.options)
        self.schema = source.schema()
        self.reader = source.streamReader(self.schema)
        return self

    def batch(self):
        """Read one batch; whether there was one."""
        start = self.start or self.reader.initialOffset()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        self.replay(start, end)
        self.start = end
        return start != end

    def replay(self, start, end):
        for part in self.reader.partitions(start, end):
            for rows in self.reader.read(part):
                self.rows += rows.to_pylist()

    def all(self):
        while self.batch():
            pass
        return self.rows
