"""Users' own tables: reading, preparing features and labels, and putting a federation together from files."""
