"""Into a repository and out of it again, and what is wrong with it."""
