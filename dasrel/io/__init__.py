"""Matrices in and out of stores."""
