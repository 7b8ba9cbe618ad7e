"""Laws of the attention layer of the paper, and their correction of order 1/n."""
