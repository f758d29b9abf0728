"""Stack settings, the hardware catalog, prices and quotas, and their validation."""

CONFIG_KEY = "trainyard:cluster"
"""The configuration key of a Pulumi stack file that holds all settings."""
