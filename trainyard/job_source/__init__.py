"""Checks of a custom job's source before a node is launched: its files, imports and requirements.

They run on the operator's machine: in the preview of the Pulumi program and in the launch.
"""
