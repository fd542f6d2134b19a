"""The Zarr store of a matrix."""
