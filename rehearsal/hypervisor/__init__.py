"""Boots what the emulated EC2 says is running, kills what it says is terminated."""
