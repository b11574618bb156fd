"""One folder a wire dialect.  A dialect knows JSON shapes and nothing of the engine."""
