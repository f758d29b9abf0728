"""Write the golden files."""

from tests.infra.conftest import deployed
from tests.infra.graphs import GOLDEN, graph_of, path_of

for stack in GOLDEN:
    path_of(stack).write_text(graph_of(deployed(stack)))
