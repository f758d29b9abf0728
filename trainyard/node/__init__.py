"""What runs on nodes beside the job: bootstrap, play, agent, rendezvous store, controller."""
