"""Cleanup: the versions to remove and the files that only they need (`plan`), and their removal (`run`)."""
