"""Creates, updates and deletes the program's resources in the emulated AWS, with one handler per resource type."""
