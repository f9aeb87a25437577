"""What is known of a version without reading its rows."""
