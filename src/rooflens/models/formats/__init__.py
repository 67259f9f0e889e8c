"""Weight and KV formats: what a stored number costs."""
