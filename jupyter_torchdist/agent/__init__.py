"""What supervises the ranks of one node."""
