"""What real parties compute: the functions of the algorithm on their own arrays."""
