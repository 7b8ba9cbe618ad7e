"""What an audit measures in a model, forward and backward."""
