"""Damaged inputs of every kind, generated from a seed, run and judged: see `python -m tests.system.fuzz --help`."""
