"""Tags, branches, clones, and the tags that readers of changes hold."""
