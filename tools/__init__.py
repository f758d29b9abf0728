"""Development tools: documentation generators and lints."""
