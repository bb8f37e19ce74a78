"""Text around the model: what must survive, what is too long, what arrives line by line."""
