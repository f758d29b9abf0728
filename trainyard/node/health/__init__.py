"""Watches the hardware and the kernel of a worker while it runs: rules, sensors, monitor and repairs.

`trainyard.node.health_check` is another package: the measurements before a job starts.
"""
