"""What kind of space the matrix is."""
