"""What a topology needs from the cluster's topics, and what is missing."""
