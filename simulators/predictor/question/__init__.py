"""What is asked: model, GPU, cluster, training, framework and recipe; what is refused."""
