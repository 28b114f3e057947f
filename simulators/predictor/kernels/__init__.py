"""Price kernels: operations of the IR -> seconds on one GPU, with the evidence behind them."""
