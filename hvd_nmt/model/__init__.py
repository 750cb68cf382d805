"""The Transformer, its loss and its decoder; nothing here knows of ranks or files.

A name such as x_BxTxD has the axes of its array, a letter for each, here, in data and in training:

    B   sentences of a batch                   D   model width
    S   source positions                       H   heads of an attention
    T   positions: target, or either side      U   units of a head
    Q   positions that ask: T, or the K        A   angles of rotary positions, U / 2
        hypotheses in a decoding step          F   hidden units of a feed-forward block
    K   hypotheses of a sentence               V   vocabulary
    L   cached keys of a head, T x K           I   inputs of a matrix
    C   candidates of a sentence               O   outputs of a matrix
    J   candidates of a hypothesis             P   matrices side by side, of one product
    M   tokens that may not come next          G   blocks into which an axis is cut
    N   rows: several axes flattened           W   numbers of a block
    R   ranks                                  Y   hosts

Two letters such as PD are two axes in one.
"""
