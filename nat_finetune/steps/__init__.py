"""What the steps of a run are made of: their order, where items come from, which are chosen, the update, the best result."""
