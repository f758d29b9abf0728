"""Trainyard: GPU training clusters on AWS from one stack file."""
