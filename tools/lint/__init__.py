"""Lints of the project that no library has."""
