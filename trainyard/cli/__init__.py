"""The `trainyard` command line: one file per command."""
