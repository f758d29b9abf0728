"""Programs that run on nodes: bootstrap, playbook, job agent, controller."""
