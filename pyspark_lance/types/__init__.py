"""Types and names between Spark, Arrow and Lance."""
