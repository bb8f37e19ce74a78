"""One training loop, with objectives, optimizer and checkpoints as its parts."""
