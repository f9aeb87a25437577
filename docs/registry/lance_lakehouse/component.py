"""A folder of Lance tables: the IO manager that stores assets in it, checks, maintenance and branches.

The component is that of the package lance-dagster, which documents its fields:
https://github.com/lance-dagster/lance-dagster/blob/main/docs/components.md
"""

try:
    from lance_dagster.components import LanceLakehouseComponent as _PackagedComponent
except ModuleNotFoundError as error:
    raise ImportError("LanceLakehouseComponent needs lance-dagster: pip install 'lance-dagster[dagster]'") from error


class LanceLakehouseComponent(_PackagedComponent):
    """A folder of Lance tables: the IO manager that stores assets in it, checks, maintenance and branches.

    A run replaces exactly its partitions in one commit, a retry leaves the rows of the last attempt alone, and every
    version of a table records its run. The assets themselves are defined elsewhere in the project.
    """
