"""What pipelines compute, said once more in plain Python."""
