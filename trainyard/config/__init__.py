"""Stack settings, the hardware catalog, prices, quotas and their validation."""
