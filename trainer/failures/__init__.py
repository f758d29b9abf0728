"""How a job that can not go on ends: out of memory, or hung."""
