"""What runs in the notebook's kernel or in a script: the public API."""
