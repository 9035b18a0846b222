"""One module a family."""
