"""Kept rehearsals: account and nodes stay up in a background process until `trainyard rehearse --down`."""
