"""Several processes as one: who does what, and a transformer sharded over them."""
