"""Facts from Dagster about runs, steps and definitions that its public interface does not give.

Everything else uses Dagster's public interface. Where a name is missing (another Dagster version, a context built by
hand in a unit test) the result is a safe default, which each function documents.
"""
