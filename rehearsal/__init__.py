"""The rehearsal: an emulated AWS, engines that run the Pulumi program, and a hypervisor that runs the nodes."""
