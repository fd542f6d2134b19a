"""What several test files use: matrices, stores, processes, faults and an oracle that knows nothing of dasrel."""
