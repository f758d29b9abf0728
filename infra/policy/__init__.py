"""Security rules for registered resources: tests apply them to graphs, the engine as a policy pack."""
