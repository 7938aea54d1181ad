"""Install stepper in a repository, check the installation and remove it."""
