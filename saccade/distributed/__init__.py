"""One run on many processes: who takes part, what they agree on, how weights and batches are shared out."""
