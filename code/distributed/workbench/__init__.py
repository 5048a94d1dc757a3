"""What taught modules are tried on: data, networks, one training loop, meters."""
