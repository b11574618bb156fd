"""Programs that maintain the project; none of them is installed with it."""
