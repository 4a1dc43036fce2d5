"""State spaces with shadow state: bounds, initialisation, and who touched what last."""
