"""`python -m trainyard.node.agent`: the agent of a worker node, run by systemd."""

import sys

from trainyard.node.watchdog import start_watchdog

if __name__ == "__main__":
    start_watchdog()  # before the other imports, which may take long on a busy node
    from trainyard.node.agent.main import main

    sys.exit(main())
