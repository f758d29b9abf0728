"""EC2: networks, images, launches, capacity and what ends them."""
