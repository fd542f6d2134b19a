"""Clusters as regions of high density: HDBSCAN* and DBSCAN from neighbours and a spanning tree."""
