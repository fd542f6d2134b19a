"""Figures and images."""
