"""What verifies the nodes before a job: `torchrun -m fleet.verification`, under the job's own Python on all nodes.

Its processes write what they find to their node's disk as they go; the node's agent reads it there and tells it.
"""
