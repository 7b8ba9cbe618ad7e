"""What checks of real networks share, whatever framework the network is written in.

`_parameter_tests` compares the numbers of parameters with their declared laws, `_pass`
compares the quantities of one forward and backward pass with draws of their law, and
`_init_check` is the result. A front end has the numbers, and runs the pass.
"""
