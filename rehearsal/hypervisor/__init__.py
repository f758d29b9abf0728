"""Runs the instances of the emulated EC2 as machines on this computer."""
