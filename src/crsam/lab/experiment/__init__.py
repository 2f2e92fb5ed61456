"""A recipe becomes a run, and many runs a comparison."""
