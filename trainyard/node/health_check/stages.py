"""Stages of a process in a health check, in order: alone, with the processes of its node, with all nodes."""

START, INSPECT, MATMUL = "start torch", "inspect the node", "multiply matrices"
NEIGHBORS, NODE_ALL_REDUCE = "wait for the processes of this node", "all-reduce within the node"
STORE = "connect to the store of the first node"
PEERS, CLUSTER_ALL_REDUCE = "wait for all nodes", "all-reduce over all nodes"
DONE = "done"
NODE_STAGES = (START, INSPECT, MATMUL, NODE_ALL_REDUCE)  # a hang or failure in these is a fault of the node

# Shares of the timeout until which a process waits for the processes of its node, and for all nodes. The rest is for
# the all-reduce and the report.
NEIGHBOR_TIMEOUT_SHARE, PEER_TIMEOUT_SHARE = 0.6, 0.75
