"""vLLM: what one of its releases does with a checkpoint's KV-cache statements."""
