"""The built-in torchrun job: a decoder-only transformer on bytes. Usable alone: `python -m trainer --config FILE`."""
