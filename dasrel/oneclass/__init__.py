"""One-cluster possibilistic c-means: typicalities, outliers, clusters of any shape."""
