"""What a run tells of itself: its metrics, where its time goes, traces, and its results."""
