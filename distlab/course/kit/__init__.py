"""What checks are made of: an exercise as data (cases, a driver, what to expect), tried on ranks and explained."""
