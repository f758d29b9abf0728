"""What must stay flat while a cluster grows, as ratios."""
