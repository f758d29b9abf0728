"""Tags that identify a stack's resources, with or without the Pulumi CLI, and that select old objects for archiving."""

TRAINYARD_PREFIX = "trainyard:"
STACK = "trainyard:stack"
ROLE = "trainyard:role"
STACK_KEY = "stack-key"
DATA_BUCKET = "data-bucket"
STAGING_BUCKET = "staging-bucket"
BUILDER = "builder"
IMAGE = "image"
HELD_CAPACITY = "held-capacity"  # the reservation of `trainyard reserve`, and its placement group

# On a builder instance: the id of its bake, and the Unix time at which it terminates. On an image: the SHA-256 of its
# content, and the image that it is based on.
BAKE = "trainyard:bake"
UNTIL = "trainyard:until"
CONTENT = "trainyard:content"
SOURCE = "trainyard:source"

# On old checkpoints and results. The data bucket's lifecycle rule moves objects with this tag to Deep Archive.
ARCHIVE = "trainyard:archive"
OLD = "old"
