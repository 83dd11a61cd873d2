"""The real environments behind dreams, and how a model watches them."""
