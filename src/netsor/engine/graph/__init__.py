"""What passes and lowering share: how to rewrite a graph, and orders in n."""
