"""The emulated AWS: a moto server, extended with the AWS behavior that a rehearsal uses and moto does not have."""
