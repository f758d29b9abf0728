"""What watches: log groups, flow logs, alarms."""
