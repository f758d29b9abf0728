"""Fragments of the trainer's failure messages that the controller's failure analysis matches.

The trainer prints them (trainer/failures/). trainyard/node/controller/failure_analysis.py attributes the failure of a
rank with such a message to another rank.
"""

HUNG_WITH_PEERS = "hung with the other ranks"
# The agent reports it after a reboot that the controller did not request.
NODE_REBOOTED = "the node rebooted"
PEER_LOST = "lost the connection to another rank"
# The report of a hang names the ranks that the others wait for, or contains one of the last two fragments.
HANG = "hang: "
ALL_RANKS_WAIT = "which all ranks have started"
NO_RANK_WAITS = "no rank waits for another"
