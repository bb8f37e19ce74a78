"""From raw pairs to batches of token ids."""
