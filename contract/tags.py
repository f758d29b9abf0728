"""Tags by which a stack's things are found, with or without the Pulumi CLI."""

STACK = "trainyard:stack"
ROLE = "trainyard:role"
DATA_BUCKET = "data-bucket"
STAGING_BUCKET = "staging-bucket"
