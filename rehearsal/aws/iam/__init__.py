"""Who calls, and whether policies let them."""
