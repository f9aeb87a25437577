"""Tags, branches and clones."""
