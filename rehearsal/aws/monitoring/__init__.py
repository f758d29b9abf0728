"""CloudWatch, SNS, logs and budgets."""
