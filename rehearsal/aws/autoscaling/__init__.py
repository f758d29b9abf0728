"""Auto Scaling: groups, their members, hooks and scheduled actions."""
