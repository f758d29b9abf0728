"""The emulated AWS: a moto server, extended from outside with what moto lacks and the road uses."""
