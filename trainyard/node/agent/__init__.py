"""The agent of a worker node: runs the job's processes and reports to the controller."""
