"""What options may be at the most."""

# Eleven days. Beyond three weeks the system's own waits take no number of milliseconds.
MOST_SECONDS = 1e6
