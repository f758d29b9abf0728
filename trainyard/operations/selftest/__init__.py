"""`trainyard selftest`: the first two steps of docs/first-real-run.md in an AWS account, with a report."""
