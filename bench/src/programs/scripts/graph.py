# networkit: ranks, betweenness of a sample, and components of a graph whose degrees follow a power law.
import sys, networkit as nk

nk.setNumberOfThreads(2)
nk.setSeed(5, False)
edges = int(sys.argv[1]) // 37
scale = (edges // 14).bit_length() - 1
graph = nk.generators.RmatGenerator(scale, edges >> scale, 0.57, 0.19, 0.19, 0.05).generate()
rank = nk.centrality.PageRank(graph, tol=1e-2)
rank.run()
nk.centrality.EstimateBetweenness(graph, 1, False, False).run()
parts = nk.components.ConnectedComponents(graph)
parts.run()
print(graph.numberOfEdges(), parts.numberOfComponents(), round(max(rank.scores()) * 1e4))
