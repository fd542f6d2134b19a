"""One pass over all tiles, on threads or on a cluster."""
