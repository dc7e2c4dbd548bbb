"""What runs inside a rank process, and what it is forked from."""
