"""Indices of partitions, tests of groups, comparison of partitions, alignment of kernels with partitions."""
