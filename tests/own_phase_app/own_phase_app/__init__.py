"""A Flower app with a phase of its own."""
