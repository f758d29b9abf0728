"""Engines that run the Pulumi program in a rehearsal: the SDK's mocks, or the Pulumi CLI."""
