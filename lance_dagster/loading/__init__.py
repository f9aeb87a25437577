"""Loading tables as inputs of steps."""
