"""What all packages build on: settings, methods by name, random numbers, errors, files, log."""
