"""Measurements beside the peers, in one run each: ``python -m benchmarks --help``."""
