"""The Pulumi program: `__main__` wires, one component a module. Imports nothing of ours but the contract."""
