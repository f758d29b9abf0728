"""The health check of nodes before a job: `torchrun -m trainyard.node.health_check`, in the job's environment.

Its processes write their results to the disk of their node, where the agent reads and reports them.
"""
