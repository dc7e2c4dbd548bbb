"""What owns a run: its resources, its world, its journal."""
