"""What CUDA's context and its libraries take of a GPU's memory, in bytes.

An allocator counts none of it, so a limit of its pool does not hold it.
"""

# of a process, before its framework allocates anything (assumed)
CONTEXT_BYTES = 500 * 2**20
MOST_CONTEXT_BYTES = 2**30  # of a process that has only listed its GPUs (assumed)
# by which free memory may fall between two trials: other contexts, displays
OTHER_CONTEXTS_BYTES = 256 * 2**20

# what handles and workspaces of cuBLAS and cuDNN need (assumed)
LEAST_LIBRARY_BYTES = 256 * 2**20
# left to libraries, within the limit, if they found too little beyond it
LIBRARY_BYTES = 512 * 2**20
# of cuDNN's workspaces, which an estimate without the GPU lacks (assumed)
WORKSPACE_BYTES = 256 * 2**20

# a framework's context and libraries, and a small model (assumed)
LEAST_FREE_BYTES = 1.5 * 2**30
