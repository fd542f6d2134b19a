"""NumPy and C on one tile: no Dask, no files."""
