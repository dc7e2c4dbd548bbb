"""What a notebook sees: the magics, the run view, the form."""
