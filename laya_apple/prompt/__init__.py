"""From a context and questions to token rows, and from logits back to answers. Knows no backend."""
