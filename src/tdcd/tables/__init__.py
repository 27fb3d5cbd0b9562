"""Tables of one's own: reading, preparing features and labels, and putting a federation together from files."""
