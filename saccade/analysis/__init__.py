"""What a model's heads do, what happens without them, and what else than attention says where an output came from."""
