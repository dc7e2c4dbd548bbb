"""Data for train functions: connectors, and shards of them."""
