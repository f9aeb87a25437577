"""Write values into columns of the rows that they belong to: plan, tasks, commit."""
