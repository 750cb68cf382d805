"""How the hosts of a run share what their ranks learn.

wire            float32 numbers as float16 on their way, with a scale for each block
host_sums       sums over ranks that cross the network between hosts once
gradient_sums   how the gradients of a step are summed
islands         hosts that train by themselves, and join their weights now and then
"""
