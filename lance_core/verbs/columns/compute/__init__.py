"""Compute columns row by row with a function of the user, each row once per code version and input."""
