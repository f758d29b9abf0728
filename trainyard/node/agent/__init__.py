"""The agent of a worker node: it runs the job's processes and reports to the controller."""
