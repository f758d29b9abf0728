"""Makes each resource of the Pulumi program for real in the emulated AWS, by type, through its public API."""
