"""Tags by which a stack's things are found, with or without the Pulumi CLI, and by which old ones are archived."""

OWN_PREFIX = "trainyard:"
STACK = "trainyard:stack"
ROLE = "trainyard:role"
STACK_KEY = "stack-key"
DATA_BUCKET = "data-bucket"
STAGING_BUCKET = "staging-bucket"
BUILDER = "builder"
IMAGE = "image"

# On a builder: which bake it is of, and the Unix time of its end. On an image: what it holds, and the image below it.
BAKE = "trainyard:bake"
UNTIL = "trainyard:until"
CONTENT = "trainyard:content"
SOURCE = "trainyard:source"

# On old checkpoints and results. The data bucket's lifecycle rule moves what bears it to Deep Archive.
ARCHIVE = "trainyard:archive"
OLD = "old"
