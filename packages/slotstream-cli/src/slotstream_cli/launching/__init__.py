"""Starting coding agents on the local model: what each of them needs, and the server they talk to."""
