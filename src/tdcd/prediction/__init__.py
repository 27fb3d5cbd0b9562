"""A trained model: what it says of new rows, of held-out ones, and its coefficients."""
