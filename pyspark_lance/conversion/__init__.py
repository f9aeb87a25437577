"""Tables of other formats into Lance, and back to Parquet."""
