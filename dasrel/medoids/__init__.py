"""Clusters around medoids: objects of the matrix with the least sum of dissimilarities to those nearest to them."""
