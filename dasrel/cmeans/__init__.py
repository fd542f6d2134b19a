"""Fuzzy, possibilistic and hard c-means on relations."""
