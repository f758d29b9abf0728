"""Tags by which a stack's things are found, with or without the Pulumi CLI, and by which old ones are archived."""

OWN_PREFIX = "trainyard:"
STACK = "trainyard:stack"
ROLE = "trainyard:role"
STACK_KEY = "stack-key"
DATA_BUCKET = "data-bucket"
STAGING_BUCKET = "staging-bucket"

# On old checkpoints and results. The data bucket's lifecycle rule moves what bears it to Deep Archive.
ARCHIVE = "trainyard:archive"
OLD = "old"
