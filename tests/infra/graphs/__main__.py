"""Write the graphs of all stacks anew."""

from tests.infra.conftest import STACKS, deployed
from tests.infra.graphs import graph_of, path_of

for stack in STACKS:
    path_of(stack).write_text(graph_of(deployed(stack)))
