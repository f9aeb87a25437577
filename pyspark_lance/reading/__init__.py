"""Reading tables: plan, partitions, pushed filters."""
