"""Clustering algorithms."""
