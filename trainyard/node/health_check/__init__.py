"""The health check of nodes before a job: `torchrun -m trainyard.node.health_check`, under the job's own Python.

Its processes write what they find to their node's disk as they go; the node's agent reads it there and tells it.
"""
