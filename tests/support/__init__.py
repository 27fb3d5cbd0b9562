"""What tests of several folders share: problems and their oracle, parties, commands and readers of pages."""
