"""EC2: networks, images, launches, capacity and terminations."""
