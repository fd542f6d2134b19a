"""TOML files of steps."""
