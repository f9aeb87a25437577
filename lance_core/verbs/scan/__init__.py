"""Read rows of a version: scans, takes, searches, and their filters, projections and plans."""
