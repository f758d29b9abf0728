"""Benchmarks: costs that must not grow with the cluster, and comparisons with other tools, as ratios."""
