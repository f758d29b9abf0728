"""Security rules on what a stack registers, asked by tests on recorded graphs and by the engine as a policy pack."""
