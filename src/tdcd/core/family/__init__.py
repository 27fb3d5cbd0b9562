"""Members of the family around Algorithm 1, one file each: a part, what it needs and what it excludes."""
