"""Components for `dg`: tables and their maintenance, described in YAML.

    lance_dagster.components.LanceLakehouseComponent       a folder of tables: IO manager, checks, maintenance, branches
    lance_dagster.components.LanceMaintenanceComponent     maintenance alone

`dg scaffold defs lance_dagster.components.LanceLakehouseComponent lake --root-uri s3://lake` writes the first.
Every `dg` command imports this package: it loads neither lance_core nor pyspark.
"""

try:
    from lance_dagster.components.lakehouse import LanceLakehouseComponent
    from lance_dagster.components.maintenance import LanceMaintenanceComponent
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "dagster":
        raise
    raise ModuleNotFoundError(
        "lance_dagster.components needs Dagster: pip install 'lance-dagster[dagster]'", name=error.name
    ) from None

__all__ = ["LanceLakehouseComponent", "LanceMaintenanceComponent"]
