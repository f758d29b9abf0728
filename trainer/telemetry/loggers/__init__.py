"""Services that get the metrics of rank 0: Weights & Biases and MLflow. Their libraries are optional."""
