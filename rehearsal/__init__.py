"""The rehearsal: an emulated AWS, an adapter for the Pulumi program, and a hypervisor that boots what it runs."""
