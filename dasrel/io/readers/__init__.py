"""One file for each format of matrices."""
