"""Model architectures: token ids and a sequence state in, logits out."""
