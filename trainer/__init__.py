"""The built-in torchrun job. It also runs standalone: `python -m trainer --config FILE`."""
