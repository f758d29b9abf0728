"""Auto Scaling: groups, their instances, lifecycle hooks and scheduled actions."""
