"""Telemetry of a run: metrics, step timing, FLOPs, traces and results."""
