"""Where a stage is, and what is published in it."""
