"""Memory and communication of a training step, calculated without GPUs: `python -m trainer plan CONFIG --ranks N`.

One rank runs the trainer's own code with tensors without data (torch's FakeTensorMode) in a process group that
communicates with nobody (torch's fake backend).
"""
