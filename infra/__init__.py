"""The Pulumi program. `__main__` reads the settings and wires the components."""
