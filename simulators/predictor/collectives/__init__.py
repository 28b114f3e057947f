"""NCCL, white-box: its choice of algorithm, protocol and channels, and the seconds that follow;
and the exchange of tokens by kernels of their own."""
