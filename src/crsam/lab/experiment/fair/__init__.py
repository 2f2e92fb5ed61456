"""A fair comparison: all chosen on validation images, paired seeds, the test set read once."""
