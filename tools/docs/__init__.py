"""Generated documentation pages and their drift check."""
