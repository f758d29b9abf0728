"""Tags by which a stack's things are found, with or without the Pulumi CLI."""

OWN_PREFIX = "trainyard:"
STACK = "trainyard:stack"
ROLE = "trainyard:role"
STACK_KEY = "stack-key"
DATA_BUCKET = "data-bucket"
STAGING_BUCKET = "staging-bucket"
# On objects of the data bucket: old checkpoints and results, which its lifecycle rule moves to Deep Archive.
ARCHIVE, OLD = "trainyard:archive", "old"
