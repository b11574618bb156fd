"""Recipe of the demo model: data, tokenizer, training, evaluation and card."""
